"""what_if: a recorded run's arrivals through our scheduler with other settings.

Our scheduler decides what vLLM's does, and the run's own steps say how long a step takes. So times
can be told for a budget, a pool or a policy that were never tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import product
from typing import Any

from minivllm.lab.sim.result import percentiles
from minivllm.lab.viz.figures.timeline import compare
from minivllm.logger import silenced
from minivllm.request import Request, RequestStatus
from minivllm.scheduling.output import ModelRunnerOutput, SchedulerOutput
from minivllm.scheduling.policies import POLICIES
from minivllm.scheduling.scheduler import Scheduler
from minivllm.trace import Trace
from minivllm.trace.records import Finished, Preempted, Sampled
from minivllm.utils.validation import check
from minivllm.xray.fit import StepCost, fit_cost
from minivllm.xray.format import XRay
from minivllm.xray.rerun import check_whole, make_scheduler, requests_of
from minivllm.xray.waits import Walk

NUMBERS = ("max_num_batched_tokens", "max_num_seqs", "num_blocks", "long_prefill_token_threshold")
SWITCHES = ("enable_prefix_caching", "enable_chunked_prefill")
_MAX_STEPS = 10**6


@dataclass(frozen=True)
class Case:
    """A run, measured or simulated, in numbers. Times are in seconds."""

    name: str
    trace: Trace
    mean_ttft: float
    p99_ttft: float
    mean_itl: float
    p99_itl: float
    tokens_per_second: float
    num_preemptions: int


@dataclass(frozen=True)
class WhatIf:
    """Result of ``what_if``: the run as measured, as simulated, and with each change."""

    cases: list[Case]
    cost: StepCost

    def __str__(self) -> str:
        head = ("", "TTFT mean", "p99", "ITL mean", "p99", "tokens/s", "preemptions")
        rows = [head, *map(_row, self.cases)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        lines = [
            "  ".join(
                text.ljust(w) if i == 0 else text.rjust(w)
                for i, (text, w) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        return "\n".join([*lines, "", str(self.cost)])

    __repr__ = __str__

    def timelines(self, last: int | None = None):
        """Timelines of the run and of each change below each other, as wide as they took."""
        measured, _, *changed = self.cases
        traces = {case.name: case.trace for case in (measured, *changed)}
        return compare(traces, last=last, clock="seconds")


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
    settings = [(_name_of(change), _changed(xray, change)) for change in changes]
    max_num_seqs = xray.header["settings"]["max_num_seqs"]
    cases = [_numbers("measured", xray.trace, max_num_seqs)]
    for name, other in [("the same, simulated", xray), *settings]:
        trace = simulate(other, cost)
        cases.append(_numbers(name, trace, other.header["settings"]["max_num_seqs"]))
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
        named[name.strip()] = [value.strip() for value in values.split(",")]
    return [dict(zip(named, values, strict=True)) for values in product(*named.values())]


def simulate(xray: XRay, cost: StepCost) -> Trace:
    """Run our scheduler on a run's arrivals; returns its trace, with simulated times.

    Raises:
        ValueError: if a request could never run with these settings.
    """
    scheduler, requests = make_scheduler(xray), requests_of(xray)
    trace = scheduler.trace
    assert trace is not None
    loop = _Loop(scheduler, xray.trace, requests, cost)
    trace.clock, trace._start = (lambda: loop.now), 0.0
    with silenced("minivllm.scheduling.preemption"):
        loop.run()
    return trace


class _Loop:
    """The engine's loop, whose clock advances by the cost of each step."""

    def __init__(
        self, scheduler: Scheduler, trace: Trace, requests: dict[str, Request], cost: StepCost
    ):
        self.scheduler, self.cost = scheduler, cost
        self.requests = sorted(requests.values(), key=lambda request: request.arrival_time)
        self.tokens: dict[str, list[int]] = {}
        walk = Walk(trace, 1)
        for record in trace.records:
            if isinstance(record, Sampled):
                self.tokens.setdefault(record.seq_id, []).append(record.token_id)
        aborted = [r.seq_id for r in trace.records
                   if isinstance(r, Finished) and r.reason == "abort"]  # fmt: skip
        self.aborts = sorted((walk.ends[name], name) for name in aborted)
        self.now = walk.rows[0].start if walk.rows else 0.0

    def run(self) -> None:
        scheduler = self.scheduler
        for _ in range(_MAX_STEPS):
            self._arrive_and_abort()
            if not scheduler.requests:
                if not self.requests:
                    return
                self.now = max(self.now, self.requests[0].arrival_time)
                continue
            plan = scheduler.schedule()
            if not plan.num_scheduled_tokens and not plan.preempted_req_ids:
                raise ValueError("no request can be admitted with these settings.")
            output = self._execute(plan)
            scheduler.update_from_output(plan, output)
            self.now += self.cost.pause_seconds(len(plan.num_scheduled_tokens))

    def _arrive_and_abort(self) -> None:
        while self.requests and self.requests[0].arrival_time <= self.now:
            self.scheduler.add_request(self.requests.pop(0))
        while self.aborts and self.aborts[0][0] <= self.now:
            _, name = self.aborts.pop(0)
            self.scheduler.finish_requests([name], RequestStatus.FINISHED_ABORTED)

    def _execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        sampled = {}
        num_tokens = num_keys = 0
        for name, num_new in plan.num_scheduled_tokens.items():
            seq = self.scheduler.sequences[name]
            context = plan.num_computed_tokens[name] + num_new
            num_tokens, num_keys = num_tokens + num_new, num_keys + context
            if context >= seq.num_tokens:
                known = self.tokens.get(name, [])
                done = seq.num_output_tokens
                sampled[name] = [known[done] if done < len(known) else 0]
        num_seqs = len(plan.num_scheduled_tokens)
        self.now += self.cost.step_seconds(num_tokens, num_seqs, num_keys)
        return ModelRunnerOutput(sampled)


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


def _numbers(name: str, trace: Trace, max_num_seqs: int) -> Case:
    walk = Walk(trace, max_num_seqs)
    ttft = [t - walk.arrivals[r] for r, t in walk.first_tokens.items() if r in walk.arrivals]
    itl = [stall.seconds for stall in walk.stalls]
    seconds = walk.rows[-1].end - walk.rows[0].start if walk.rows else 0.0
    num_tokens = sum(isinstance(r, Sampled) for r in trace.records)
    return Case(
        name, trace, _mean(ttft), _p99(ttft), _mean(itl), _p99(itl),
        num_tokens / seconds if seconds else 0.0,
        sum(isinstance(r, Preempted) for r in trace.records),
    )  # fmt: skip


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _p99(values: Sequence[float]) -> float:
    return percentiles(list(values))["p99"] if values else 0.0


def _row(case: Case) -> tuple[str, ...]:
    times = case.mean_ttft, case.p99_ttft, case.mean_itl, case.p99_itl
    shown = [f"{1000 * value:.1f} ms" for value in times]
    return (case.name, *shown, f"{case.tokens_per_second:.0f}", str(case.num_preemptions))
