"""what_if: a recorded run's arrivals through our scheduler with other settings.

Our scheduler decides what vLLM's does, and the run's own steps say how long a step takes. So times
can be told for a budget, a pool or a policy that were never tried.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from typing import Any

from minivllm.lab.sim.clock import Clock
from minivllm.lab.sim.result import percentiles
from minivllm.lab.viz.figures.timeline import compare
from minivllm.scheduling.policies import POLICIES
from minivllm.trace import Trace
from minivllm.trace.records import Preempted, Sampled
from minivllm.utils.validation import check
from minivllm.xray.arrivals import times_to_schedule
from minivllm.xray.fit import StepCost, fit_cost, guess
from minivllm.xray.format import XRay
from minivllm.xray.replay_settings import (
    arrivals_of,
    check_whole,
    ends_of,
    is_async,
    make_scheduler,
    requests_of,
)
from minivllm.xray.timed_run import OverlappedRun, TimedRun
from minivllm.xray.waits import Walk

NUMBERS = ("max_num_batched_tokens", "max_num_seqs", "num_blocks", "long_prefill_token_threshold")
SWITCHES = ("enable_prefix_caching", "enable_chunked_prefill", "async_scheduling")
MOST_OFF = 0.15  # of a sum, beyond which there is a warning


@dataclass(frozen=True)
class Case:
    """A run, measured or simulated, in numbers. Times are in seconds.

    ``guess`` says which of its steps are like none of the run; "" if few are.
    """

    name: str
    trace: Trace
    mean_ttft: float
    p99_ttft: float
    mean_itl: float
    p99_itl: float
    tokens_per_second: float
    num_preemptions: int
    guess: str = ""


@dataclass(frozen=True)
class WhatIf:
    """Result of ``what_if``: the run as measured, as simulated, and with each change."""

    cases: list[Case]
    cost: StepCost

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def text(self, columns: int = sys.maxsize) -> str:
        """Return the table and what it is worth.

        Args:
            columns: of the terminal. Where rows would be longer, each name stands above its
                numbers.
        """
        head = ("", "TTFT mean", "p99", "ITL mean", "p99", "tokens/s", "preemptions")
        rows = [head, *map(_row, self.cases)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        numbers = [
            "".join(f"  {text:>{w}}" for text, w in zip(row[1:], widths[1:], strict=True))
            for row in rows
        ]
        names = [row[0] for row in rows]
        if widths[0] + len(numbers[0]) <= columns:
            lines = [f"{name:<{widths[0]}}{row}" for name, row in zip(names, numbers, strict=True)]
        else:
            lines = [line for pair in zip(names, numbers, strict=True) for line in pair if line]
        return "\n".join([*(line.rstrip() for line in lines), "", str(self.cost), *self._trust()])

    @property
    def ratios(self) -> dict[str, float]:
        """Error of the sums: the run simulated with its own settings, over what was measured."""
        measured, same = self.cases[:2]
        return {
            "TTFT": _ratio(same.mean_ttft, measured.mean_ttft),
            "ITL": _ratio(same.mean_itl, measured.mean_itl),
            "tokens/s": _ratio(same.tokens_per_second, measured.tokens_per_second),
        }

    def _trust(self) -> list[str]:
        """Say how far the simulated numbers can be trusted."""
        shown = ", ".join(f"{name} {ratio:.2f} x" for name, ratio in self.ratios.items())
        lines = [f"the same settings, simulated: {shown} of what was measured"]
        off = [name for name, ratio in self.ratios.items() if abs(ratio - 1) > MOST_OFF]
        if off:
            lines.append(
                f"WARNING: {' and '.join(off)} of the same settings differ by more than "
                f"{MOST_OFF:.0%} from what was measured: do not decide by the other rows."
            )
        lines += [
            f"WARNING: {case.name} is a guess: {case.guess}." for case in self.cases if case.guess
        ]
        return lines

    def timelines(
        self, first: int | None = None, last: int | None = None, title: str | None = None,
        mark: Sequence[tuple] = (),
    ):  # fmt: skip
        """Timelines of the run and of each change below each other, as wide as they took.

        Arguments as for ``compare``: the steps that are drawn, a claim and places to point at.
        """
        measured, _, *changed = self.cases
        traces = {case.name: case.trace for case in (measured, *changed)}
        return compare(traces, first=first, last=last, clock="seconds", title=title, mark=mark)


def what_if(xray: XRay, *changes: Mapping[str, Any]) -> WhatIf:
    """Run the same arrivals and lengths through our scheduler, with other settings.

    Args:
        xray: from ``load_xray``.
        changes: of each case, by name: those of vLLM in ``NUMBERS`` and ``SWITCHES``, and
            ``policy``. A number may be "x2" or "x0.5": that many times the recorded one.

    Raises:
        ValueError: for an unknown name or value, or a run that cannot be run again.
    """
    check_whole(xray)
    drafts = xray.header["settings"].get("num_speculative_tokens", 0)
    check(not drafts, "num_speculative_tokens", drafts, "0 in the run: which drafts would be right "
          "in other steps is not known")  # fmt: skip
    cost = fit_cost(xray.trace)
    others = [(_name_of(change), _changed(xray, change)) for change in changes]
    arrivals = arrivals_of(xray)
    measured = _walk(xray, xray.trace)
    cases = [_numbers("measured", measured, arrivals)]
    for name, other in [("the same, simulated", xray), *others]:
        trace = run_again(other, measured, cost)
        case = _numbers(name, _walk(other, trace), arrivals)
        guesses = [guess(cost, trace)]
        if is_async(other) != is_async(xray):
            guesses.append("of a step only planning counts as the CPU's, all else as the device's")
        cases.append(replace(case, guess=" and ".join(filter(None, guesses))))
    return WhatIf(cases, cost)


def parse_changes(words: Iterable[str]) -> list[dict[str, Any]]:
    """Cases from words such as ``max_num_seqs=8,16`` and ``policy=priority``: every combination.

    Raises:
        ValueError: for a word without "=".
    """
    named: dict[str, list[str]] = {}
    for word in words:
        name, equals, values = word.partition("=")
        check(bool(equals and name and values), "a setting", word, "NAME=VALUE, or NAME=A,B,C")
        check(name.strip() not in named, "a setting", word, "named once, with all its values")
        named[name.strip()] = [value.strip() for value in values.split(",")]
    return [dict(zip(named, values, strict=True)) for values in product(*named.values())]


def run_again(xray: XRay, measured: Walk, cost: StepCost) -> Trace:
    """Run our scheduler on a run's arrivals; returns its trace, with simulated times.

    Raises:
        ValueError: if a request could never run with these settings.
    """
    clock = Clock()
    scheduler = make_scheduler(xray, clock)
    requests = requests_of(xray)
    times = times_to_schedule(xray)
    for name, request in requests.items():
        request.arrival_time = times.get(name, request.arrival_time)
    if measured.rows:
        clock.now = measured.rows[0].start
    kind = OverlappedRun if is_async(xray) else TimedRun
    run = kind(scheduler, measured, cost, clock=clock, ends=ends_of(xray))
    run.run(requests.values())
    assert scheduler.trace is not None
    return scheduler.trace


def _changed(xray: XRay, change: Mapping[str, Any]) -> XRay:
    """The run with other settings in its header."""
    other = copy(xray)
    other.header = {**xray.header, "settings": dict(xray.header["settings"])}
    for name, value in change.items():
        known = (*NUMBERS, *SWITCHES, "policy")
        check(name in known, "a setting", name, f"one of {', '.join(known)}")
        if name == "num_blocks":
            other.header[name] = _number(name, value, xray.header[name])
        elif name in NUMBERS:
            old = xray.header["settings"].get(name, 0)
            other.header["settings"][name] = _number(name, value, old)
        elif name in SWITCHES:
            check(str(value).lower() in ("true", "false"), name, value, "true or false")
            if name == "async_scheduling":
                other.header.pop("scheduler", None)  # which may say that it is
            other.header["settings"][name] = str(value).lower() == "true"
        else:
            value = value.replace("-", "_") if isinstance(value, str) else value
            ok = not isinstance(value, str) or value in POLICIES
            check(ok, name, value, f"one of {', '.join(POLICIES)}, or a SchedulingPolicy")
            other.header["settings"][name] = value
    return other


def _number(name: str, value: Any, old: int) -> int:
    """A number of at least 1, or one that is a factor of the old one."""
    text = str(value)
    try:
        number = round(old * float(text[1:])) if text.startswith("x") else int(text)
    except (ValueError, OverflowError):
        number = 0
    least = 2 if name == "num_blocks" else 1
    check(least <= number <= 10**7, name, value, f"an integer of at least {least}, or 'x2'")
    return number


def _name_of(change: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in change.items()) or "no change"


def _walk(xray: XRay, trace: Trace) -> Walk:
    return Walk(trace, xray.header["settings"]["max_num_seqs"])


def _numbers(name: str, walk: Walk, arrivals: dict[str, float]) -> Case:
    trace = walk.trace
    ttft = [t - arrivals[r] for r, t in walk.first_tokens.items() if r in arrivals]
    itl = [stall.seconds for stall in walk.stalls]
    seconds = walk.rows[-1].end - walk.rows[0].start if walk.rows else 0.0
    num_tokens = sum(isinstance(r, Sampled) for r in trace.records)
    return Case(
        name,
        trace,
        mean_ttft=_mean(ttft),
        p99_ttft=_p99(ttft),
        mean_itl=_mean(itl),
        p99_itl=_p99(itl),
        tokens_per_second=num_tokens / seconds if seconds else 0.0,
        num_preemptions=sum(isinstance(r, Preempted) for r in trace.records),
    )


def _ratio(told: float, measured: float) -> float:
    return told / measured if measured else 1.0 if told == measured else inf


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _p99(values: Sequence[float]) -> float:
    return percentiles(list(values))["p99"] if values else 0.0


def _row(case: Case) -> tuple[str, ...]:
    times = case.mean_ttft, case.p99_ttft, case.mean_itl, case.p99_itl
    shown = [f"{1000 * value:.1f} ms" for value in times]
    return (case.name, *shown, f"{case.tokens_per_second:.0f}", str(case.num_preemptions))
