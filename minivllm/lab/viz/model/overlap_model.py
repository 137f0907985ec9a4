"""OverlapModel: what the CPU and each device did when, by steps or by seconds."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from minivllm.lab.viz.model.flights import Flight, read_flights
from minivllm.trace import Trace
from minivllm.trace.records import Communicated, RankWorked, StepEnded, StepPlanned, StepStarted

# By steps: a plan, an update and the making of text last one unit each, and a device computes a
# plan for longer than all of them take together.
UNIT = 1.0
DEVICE_UNITS = 4.0


class Part(NamedTuple):
    """A stretch of a lane: "plan", "wait", "update", "text", or "compute" of a device."""

    kind: str
    plan: int
    start: float
    end: float


class Token(NamedTuple):
    """A token of a sequence, on its way from its plan on; ``known`` is None if it never came."""

    seq_id: str
    plan: int
    start: float
    known: float | None
    is_wasted: bool


@dataclass
class OverlapModel:
    """Lanes of a run, and when its tokens were known. Times count from its first call.

    Attributes:
        cpu: parts in order.
        devices: parts by rank, in order.
        tokens: in the order of plans.
    """

    cpu: list[Part]
    devices: dict[int, list[Part]]
    tokens: list[Token]

    @property
    def end(self) -> float:
        parts = [part.end for lane in (self.cpu, *self.devices.values()) for part in lane]
        return max(parts, default=0.0)

    @property
    def num_wasted(self) -> int:
        return sum(token.is_wasted for token in self.tokens)

    def idle_share(self, rank: int) -> float:
        """Share of the time from a device's first plan to its last in which it had none."""
        lane = self.devices[rank]
        whole = lane[-1].end - lane[0].start
        return max(0.0, 1 - sum(part.end - part.start for part in lane) / whole)

    @property
    def planned_ahead(self) -> tuple[int, int]:
        """Plans that were made before a device had ended the one before, and plans with one."""
        ends = {part.plan: part.end for lane in self.devices.values() for part in lane}
        made = {part.plan: part.end for part in self.cpu if part.kind == "plan"}
        later = [plan for plan in made if plan - 1 in ends and plan in ends]
        return sum(made[plan] < ends[plan - 1] for plan in later), len(later)


def read_overlap(trace: Trace, first: int, last: int, clock: str) -> OverlapModel:
    """The lanes of the calls from ``first`` to ``last``; errors as of ``overlap_lanes``."""
    flights = read_flights(trace)
    whole = _by_steps(trace, flights) if clock == "steps" else _by_seconds(trace, flights)
    calls = range(first, last + 1)
    begin = min((part.start for part in whole.cpu[first]), default=0.0)

    def moved(part: Part) -> Part:
        return part._replace(start=max(0.0, part.start - begin), end=part.end - begin)

    cpu = [moved(part) for call in calls for part in whole.cpu[call]]
    seen = [flight for flight in flights.values() if flight.plan in calls or flight.ended in calls]
    plans = {flight.plan for flight in seen}
    devices = {
        rank: [moved(part) for part in parts if part.plan in plans]
        for rank, parts in sorted(whole.devices.items())
        if any(part.plan in plans for part in parts)
    }
    made = {part.plan: part.end for part in cpu if part.kind == "plan"}
    known = {part.plan: part.end for part in cpu if part.kind == "update"}
    tokens = [
        Token(
            seq_id,
            flight.plan,
            made.get(flight.plan, 0.0),
            known=known.get(flight.plan),
            is_wasted=seq_id in flight.wasted or flight.given_up,
        )
        for flight in seen
        for seq_id in flight.sampling
    ]
    return OverlapModel(cpu, devices, tokens)


@dataclass
class _Whole:
    """Parts of a whole run: the CPU's by call, the devices' by rank."""

    cpu: dict[int, list[Part]] = field(default_factory=lambda: defaultdict(list))
    devices: dict[int, list[Part]] = field(default_factory=lambda: defaultdict(list))


def _ended_by_call(flights: dict[int, Flight]) -> dict[int, int]:
    """By call, the plan that ended in it."""
    return {f.ended: f.plan for f in flights.values() if f.ended is not None}


def _by_steps(trace: Trace, flights: dict[int, Flight]) -> _Whole:
    """Every part as long as its units, and each as early as what it needs is there."""
    whole = _Whole()
    stages = _stages(trace)
    ended = _ended_by_call(flights)
    now = 0.0
    done: dict[int, float] = {}  # by plan: when the last stage has computed it
    free: dict[int, float] = defaultdict(float)  # by stage
    for call in range(trace.first_step, trace.num_steps):
        parts = whole.cpu[call]
        if call in flights:
            parts.append(Part("plan", call, now, now + UNIT))
            now += UNIT
            arrives = now
            for stage, ranks in enumerate(stages if flights[call].num_tokens else []):
                start = max(arrives, free[stage])
                arrives = free[stage] = start + DEVICE_UNITS
                for rank in ranks:
                    whole.devices[rank].append(Part("compute", call, start, arrives))
            done[call] = arrives
        plan = ended.get(call)
        if plan is None:
            continue
        came = max(now, done.get(plan, now))
        parts += _behind(plan, now, came, came + UNIT)
        parts.append(Part("text", plan, came + UNIT, came + 2 * UNIT))
        now = came + 2 * UNIT
    return whole


def _by_seconds(trace: Trace, flights: dict[int, Flight]) -> _Whole:
    whole = _Whole()
    ended = _ended_by_call(flights)
    done: dict[int, float] = {}
    for work in trace.of(RankWorked):
        if work.end > work.start:
            part = Part("compute", work.plan, work.start, work.end)
            whole.devices[work.rank].append(part)
            done[work.plan] = max(done.get(work.plan, 0.0), work.end)
    started = {record.step: record.time for record in trace.of(StepStarted)}
    planned = {record.step: record.time for record in trace.of(StepPlanned)}
    ends = {record.step: record.time for record in trace.of(StepEnded)}
    for call in range(trace.first_step, trace.num_steps):
        parts = whole.cpu[call]
        if call in flights:
            parts.append(Part("plan", call, started[call], planned[call]))
        plan = ended.get(call)
        if plan is None:
            continue
        since = planned[call]
        came = min(max(since, done.get(plan, since)), ends[call])
        parts += _behind(plan, since, came, ends[call])
        if call + 1 in started:
            parts.append(Part("text", plan, ends[call], started[call + 1]))
    return whole


def _behind(plan: int, since: float, came: float, end: float) -> list[Part]:
    """Parts behind the planning in a call: waiting for a device, and the update."""
    waits = [Part("wait", plan, since, came)] if came > since else []
    return [*waits, Part("update", plan, came, end)]


def _stages(trace: Trace) -> list[list[int]]:
    """Ranks of each stage; one device without a number is rank 0."""
    ranks = sorted({record.rank for record in trace.of(RankWorked)}) or [0]
    receivers = {record.rank for record in trace.of(Communicated) if record.op == "recv"}
    size = len([rank for rank in ranks if rank not in receivers])
    return [ranks[start : start + size] for start in range(0, len(ranks), size)]
