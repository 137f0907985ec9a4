"""StepCost: seconds of a step, fitted to the steps of a recorded run by least squares.

A step takes so long for itself, for each token, for each sequence and for each key that attention
reads; none of these may be negative. So does the time between two steps, which is the engine's or
the server's own work.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from minivllm.trace import Trace
from minivllm.trace.records import RequestAdded, Scheduled, StepEnded, StepStarted

_SWEEPS = 3000
_OUTLIER = 5  # times as long as the fit says


@dataclass(frozen=True)
class StepCost:
    """Seconds of a step and of the time behind it.

    Args:
        step: per step, per token, per sequence, per key read.
        between: per pause between two steps, per sequence in the first of them.
        error: mean error of a step's time, as a share of the mean time.
    """

    step: tuple[float, ...]
    between: tuple[float, ...]
    error: float

    def step_seconds(self, num_tokens: int, num_seqs: int, num_keys: int) -> float:
        """Seconds from a step's beginning to its end."""
        return _dot(self.step, (1, num_tokens, num_seqs, num_keys))

    def pause_seconds(self, num_seqs: int) -> float:
        """Seconds from the end of a step to the beginning of the next."""
        return self.between[0] + self.between[1] * num_seqs

    def __str__(self) -> str:
        names = ("step", "token", "sequence", "1,000 keys")
        parts = [
            f"{1e6 * value * (1000 if name == names[-1] else 1):.1f} µs per {name}"
            for name, value in zip(names, self.step, strict=True)
        ]
        return (
            f"cost of a step: {', '.join(parts)};\nbetween two steps "
            f"{1e6 * self.between[0]:.0f} µs + {1e6 * self.between[1]:.1f} per sequence; "
            f"mean error {self.error:.0%}"
        )


def fit_cost(trace: Trace) -> StepCost:
    """Fit the cost to a run.

    Raises:
        ValueError: if it has fewer than ten steps.
    """
    steps, pauses = _observations(trace)
    if len(steps) < 10:
        raise ValueError(f"a fit needs at least 10 steps, and the run has {len(steps)}.")
    step = non_negative_least_squares([f for f, _ in steps], [y for _, y in steps])
    # what is compiled when it is first needed, say, takes its time once
    steps = [(f, y) for f, y in steps if y <= _OUTLIER * _dot(step, f)] or steps
    step = non_negative_least_squares([f for f, _ in steps], [y for _, y in steps])
    between = (0.0, 0.0)
    if pauses:
        found = non_negative_least_squares([f for f, _ in pauses], [y for _, y in pauses])
        between = found[0], found[1]
    errors = [abs(_dot(step, features) - y) for features, y in steps]
    mean = sum(y for _, y in steps) / len(steps)
    return StepCost(tuple(step), between, sum(errors) / len(errors) / mean if mean else 0.0)


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
        for i in range(n):
            if gram[i][i]:
                rest = target[i] - sum(gram[i][j] * found[j] for j in range(n) if j != i)
                found[i] = max(0.0, rest / gram[i][i])
    return [x / s for x, s in zip(found, scales, strict=True)]


def _dot(coefficients: Sequence[float], features: Sequence[float]) -> float:
    return sum(c * f for c, f in zip(coefficients, features, strict=True))


def _observations(trace: Trace) -> tuple[list, list]:
    """Features and seconds of every step, and of every pause in which requests were unfinished."""
    steps, pauses = [], []
    plan: list[Scheduled] = []
    start, end, num_seqs, idle = 0.0, None, 0, False
    for record in trace.records:
        match record:
            case StepStarted():
                if end is not None and num_seqs and not idle:
                    pauses.append(((1.0, float(num_seqs)), record.time - end))
                start, plan = record.time, []
            case Scheduled():
                plan.append(record)
            case RequestAdded():
                idle = idle or (end is not None and num_seqs == 0)
            case StepEnded():
                steps.append((features_of(plan), record.time - start))
                end, num_seqs = record.time, len(plan)
                idle = False
    return steps, pauses


def features_of(plan: Iterable[Scheduled]) -> tuple[float, ...]:
    """Return what a step's time depends on: 1, tokens, sequences, keys that attention reads."""
    plan = list(plan)
    num_keys = sum(r.num_computed_tokens + r.num_tokens for r in plan)
    return 1.0, float(sum(r.num_tokens for r in plan)), float(len(plan)), float(num_keys)
