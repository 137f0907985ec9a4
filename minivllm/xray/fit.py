"""StepCost: seconds of a step, fitted to the steps of a recorded run by least squares.

A step takes so long for itself, for each sequence, for each token that a sequence has beyond one
(of its prompt), and for each key that attention reads; none of these may be negative. So does the
time between two steps, which is the engine's or the server's own work. What took many times as
long as such a step is an interruption. With plans in flight a step takes what the plan takes that
it ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from minivllm.trace import Trace
from minivllm.trace.records import (
    Finished,
    RequestAdded,
    Scheduled,
    StepEnded,
    StepPlanned,
    StepStarted,
)
from minivllm.trace.state import ALIVE
from minivllm.xray.in_flight import ended_plans

_SWEEPS = 3000
_REWEIGHTINGS = 5
_OUTLIER = 5  # times as long as the fit says
_LARGE_PART = 0.1  # of the time
_FARTHER = 1.25  # times the most that was seen: a line may be followed a little

FEATURES = ("step", "prompt tokens", "sequences", "keys")  # what a step's time depends on


class Interruption(NamedTuple):
    """Time that the fit does not explain: something was compiled, or the machine was taken away."""

    time: float  # seconds
    seconds: float


@dataclass(frozen=True)
class StepCost:
    """Seconds of a step and of the time behind it.

    Args:
        step: per step, per token beyond one of a sequence, per sequence, per key read.
        between: per pause between two steps, per sequence in the first of them.
        error: mean error of a step's time, as a share of the mean time.
        interruptions: of steps and pauses that the fit leaves out, the earliest first.
        left_out: share of the time that these steps and pauses took.
        least, most: of ``FEATURES``, among the steps of the fit.
        plan: of a step, until its plan is made: for itself, and per sequence.
        is_overlapped: True if the run had plans in flight while it made others.
    """

    step: tuple[float, ...]
    between: tuple[float, ...]
    error: float
    interruptions: tuple[Interruption, ...] = ()
    left_out: float = 0.0
    least: tuple[float, ...] = ()
    most: tuple[float, ...] = ()
    plan: tuple[float, float] = (0.0, 0.0)
    is_overlapped: bool = False

    def step_seconds(self, features: Sequence[float]) -> float:
        """Seconds from a step's beginning to its end."""
        return _dot(self.step, features)

    def pause_seconds(self, num_seqs: int) -> float:
        """Seconds from the end of a step to the beginning of the next."""
        return self.between[0] + self.between[1] * num_seqs

    def plan_seconds(self, num_seqs: int) -> float:
        """Seconds of the CPU until a plan is made."""
        return self.plan[0] + self.plan[1] * num_seqs

    def device_seconds(self, features: Sequence[float]) -> float:
        """Seconds of the device for a plan, which starts when the plan is made.

        Of a run without plans in flight it is all of a step but its planning. Else it is what a
        step and the pause behind it take, in which the device worked: less if it had to wait for
        the CPU, which the run does not say.
        """
        num_seqs = int(features[2])
        if self.is_overlapped:
            return self.step_seconds(features) + self.pause_seconds(num_seqs)
        return max(0.0, self.step_seconds(features) - self.plan_seconds(num_seqs))

    def seconds_alone(self, features: Sequence[float]) -> float:
        """Seconds of a step that makes a plan and ends it."""
        if self.is_overlapped:
            return self.plan_seconds(int(features[2])) + self.device_seconds(features)
        return self.step_seconds(features)

    def __str__(self) -> str:
        names = ("step", "prompt token", "sequence", "1,000 keys")
        parts = [
            f"{1e6 * value * (1000 if name == names[-1] else 1):.1f} µs per {name}"
            for name, value in zip(names, self.step, strict=True)
        ]
        text = (
            f"cost of a step: {', '.join(parts)};\nbetween two steps "
            f"{1e6 * self.between[0]:.0f} µs + {1e6 * self.between[1]:.1f} per sequence; "
            f"mean error {self.error:.0%}"
        )
        if self.interruptions:
            text += (
                f"\nleft out of the fit: {len(self.interruptions)} steps or pauses of more than "
                f"{_OUTLIER} times what it says, {self.left_out:.1%} of the time"
            )
        return text


class _Observation(NamedTuple):
    """A step or a pause: when it began, what its time may depend on, and its seconds."""

    start: float
    features: tuple[float, ...]
    seconds: float


def fit_cost(trace: Trace) -> StepCost:
    """Fit the cost to a run.

    Raises:
        ValueError: if it has fewer than ten steps.
    """
    steps, pauses, plans = _observations(trace)
    if len(steps) < 10:
        raise ValueError(f"a fit needs at least 10 steps, and the run has {len(steps)}.")
    step, kept, slow_steps = _fit(steps)
    between, _, slow_pauses = _fit(pauses) if pauses else ([0.0, 0.0], [], [])
    (plan, plan_each), _, _ = _fit(plans) if plans else ([0.0, 0.0], [], [])
    ended = ended_plans(trace)
    errors = [abs(_dot(step, seen.features) - seen.seconds) for seen in kept]
    mean = sum(seen.seconds for seen in kept) / len(kept)
    slow = [(seen, step) for seen in slow_steps] + [(seen, between) for seen in slow_pauses]
    left_out = sum(seen.seconds for seen, _ in slow)
    columns = list(zip(*(seen.features for seen in kept), strict=True))
    return StepCost(
        tuple(step),
        tuple(between),
        sum(errors) / len(errors) / mean if mean else 0.0,
        interruptions=tuple(sorted(
            Interruption(seen.start, seen.seconds - _dot(found, seen.features))
            for seen, found in slow
        )),
        left_out=left_out / (sum(seen.seconds for seen in steps + pauses) or 1.0),
        least=tuple(map(min, columns)),
        most=tuple(map(max, columns)),
        plan=(plan, plan_each),
        is_overlapped=any(ended[step] != step for step in ended),
    )  # fmt: skip


def _fit(seen: list[_Observation]) -> tuple[list[float], list[_Observation], list[_Observation]]:
    """Coefficients, the observations that they were fitted to, and those that were left out."""
    kept = seen
    while True:
        found = _relative_fit(kept)
        some = [o for o in kept if o.seconds <= _OUTLIER * _dot(found, o.features)]
        if len(some) in (0, len(kept)):
            left = set(map(id, kept))
            return found, kept, [o for o in seen if id(o) not in left]
        kept = some


def guess(cost: StepCost, trace: Trace) -> str:
    """Say which steps of a simulated run are like none that the cost was fitted to; "" if few are.

    Only those count that the run had too few or too many of, and that take a part of the time.
    """
    steps, _, _ = _observations(trace)
    total = sum(seen.seconds for seen in steps)
    said = []
    for i, name in enumerate(FEATURES):
        least, most = cost.least[i], cost.most[i]
        below = sum(seen.seconds for seen in steps if seen.features[i] < least)
        above = sum(seen.seconds for seen in steps if seen.features[i] > _FARTHER * most)
        if below > _LARGE_PART * total:
            said.append(f"the run has no step with fewer than {least:.0f} {name}")
        if above > _LARGE_PART * total:
            said.append(f"the run has no step with more than {most:.0f} {name}")
    return " and ".join(said)


def non_negative_least_squares(
    rows: Sequence[Sequence[float]], values: Sequence[float]
) -> list[float]:
    """Find the coefficients of at least 0 with the least squares of errors, one after another.

    (Coordinate descent on the normal equations, whose columns are scaled to length 1.)
    """
    n = len(rows[0])
    scales = [sum(row[i] ** 2 for row in rows) ** 0.5 or 1.0 for i in range(n)]
    scaled = [[x / s for x, s in zip(row, scales, strict=True)] for row in rows]
    gram = [[sum(row[i] * row[j] for row in scaled) for j in range(n)] for i in range(n)]
    target = [sum(row[i] * y for row, y in zip(scaled, values, strict=True)) for i in range(n)]
    found = [0.0] * n
    for _ in range(_SWEEPS):
        before = list(found)
        for i in range(n):
            if gram[i][i]:
                rest = target[i] - sum(gram[i][j] * found[j] for j in range(n) if j != i)
                found[i] = max(0.0, rest / gram[i][i])
        if all(abs(x - y) <= 1e-12 * abs(x) for x, y in zip(found, before, strict=True)):
            break
    return [x / s for x, s in zip(found, scales, strict=True)]


def _dot(coefficients: Sequence[float], features: Sequence[float]) -> float:
    return sum(c * f for c, f in zip(coefficients, features, strict=True))


def _relative_fit(seen: list[_Observation]) -> list[float]:
    """Coefficients under which an error weighs less, the longer its step takes.

    So the few short steps count as well. (Weights of 1 over the fitted time: the errors of all
    steps then add up to nothing, as those of a Poisson regression do.)
    """
    weights = [1.0] * len(seen)
    for _ in range(_REWEIGHTINGS):
        rows = [[w * x for x in o.features] for w, o in zip(weights, seen, strict=True)]
        values = [w * o.seconds for w, o in zip(weights, seen, strict=True)]
        found = non_negative_least_squares(rows, values)
        weights = [max(_dot(found, o.features), 1e-9) ** -0.5 for o in seen]
    return found


def _observations(
    trace: Trace,
) -> tuple[list[_Observation], list[_Observation], list[_Observation]]:
    """Steps that end a plan, pauses between two in which a request was there, and plannings."""
    steps: list[_Observation] = []
    pauses: list[_Observation] = []
    plannings: list[_Observation] = []
    beginning = trace.beginning().sequences.values()
    unfinished = {seq.seq_id for seq in beginning if seq.status in ALIVE}
    ended = ended_plans(trace)
    plans: dict[int | None, list[Scheduled]] = {}  # in flight
    plan: list[Scheduled] = []
    start = 0.0
    end = None
    is_idle = False
    for record in trace.records:
        match record:
            case RequestAdded():
                unfinished.add(record.request_id)
            case Finished():
                unfinished.discard(record.seq_id)
                is_idle = is_idle or not unfinished
            case StepStarted():
                if end is not None and not is_idle:
                    pauses.append(_Observation(end, (1.0, float(len(plan))), record.time - end))
                start = record.time
                plan = []
            case Scheduled():
                plan.append(record)
            case StepPlanned():
                if plan:
                    features = 1.0, float(len(plan))
                    plannings.append(_Observation(start, features, record.time - start))
                plans[record.step] = plan
            case StepEnded():
                if (made := plans.pop(ended.get(record.step), None)) is not None:
                    features = features_of(made)
                    steps.append(_Observation(start, features, record.time - start))
                end = record.time
                is_idle = not unfinished
    return steps, pauses, plannings


def features_of(plan: Iterable[Scheduled]) -> tuple[float, ...]:
    """Return ``FEATURES`` of a plan."""
    plan = list(plan)
    num_keys = sum(r.num_computed_tokens + r.num_tokens for r in plan)
    return features(sum(r.num_tokens for r in plan), len(plan), num_keys)


def features(num_tokens: int, num_seqs: int, num_keys: int) -> tuple[float, ...]:
    """Return what a step's time depends on: 1, tokens of prompts, sequences, keys that are read."""
    return 1.0, float(num_tokens - num_seqs), float(num_seqs), float(num_keys)
