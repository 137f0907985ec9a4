"""waits_table: the requests of a run that waited, and why, for the page."""

from __future__ import annotations

from collections import Counter

from minivllm.lab.viz.draw.palette import owners_of
from minivllm.lab.viz.draw.wording import count
from minivllm.lab.viz.page.page import Waits
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
            "why": counted(causes, seconds[name]),
        }
        for name, causes in steps.items()
        if name in owners
    ]
    rows.sort(key=lambda row: (-row["seconds"], -row["steps"], row["row"]))
    return Waits(_summary(len(rows), len(found.walk.arrivals), found.steps_waited), rows)


def _summary(num_waited: int, num_requests: int, steps: Counter) -> str:
    if not num_waited:
        return f"{count(num_requests, 'request')}, and none waited."
    return (
        f"{num_waited} of {count(num_requests, 'request')} waited, together "
        f"{count(steps.total(), 'step')}: {counted(steps)}."
    )
