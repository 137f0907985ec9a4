"""waits_table: the requests of a run that waited, and why, for the page."""

from __future__ import annotations

import re
from collections import Counter

from minivllm.lab.translation import translated
from minivllm.lab.viz.draw.palette import owners_of
from minivllm.lab.viz.page.page import Waits, sum_of_waits
from minivllm.trace import Trace
from minivllm.xray.reports import Report, counted


def waits_table(found: Report, trace: Trace) -> Waits:
    """Add up each request's waits; those that waited longest come first.

    Args:
        found: of the recording.
        trace: its steps that are drawn.
    """
    steps: dict[str, Counter] = {}
    seconds: dict[str, Counter] = {}
    for wait in found.walk.waits:
        if wait.causes:
            steps.setdefault(wait.request_id, Counter()).update(wait.causes)
            seconds.setdefault(wait.request_id, Counter()).update(wait.seconds)
    owners = owners_of(trace)
    places = {name: row for row, name in enumerate(owners)}
    rows = [
        {
            "row": places[name],
            "letter": owners[name].letter,
            "request": name,
            "steps": causes.total(),
            "seconds": seconds[name].total(),
            "why": counted(_in_words(causes), _in_words(seconds[name])),
        }
        for name, causes in steps.items()
        if name in owners
    ]
    rows.sort(key=lambda row: (-row["seconds"], -row["steps"], row["row"]))
    causes = found.steps_waited
    why = counted(_in_words(causes))
    summary = sum_of_waits(len(rows), len(found.walk.arrivals), causes.total(), why)
    return Waits(summary, rows)


def _in_words(by_cause: Counter) -> Counter:
    """The same by causes in the language that is set; numbers in them are "#" for a catalogue."""

    def told(cause: str) -> str:
        number = re.search(r"\d+", cause)
        return translated(re.sub(r"\d+", "#", cause)).replace("#", number[0] if number else "#")

    return Counter({told(cause): number for cause, number in by_cause.items()})
