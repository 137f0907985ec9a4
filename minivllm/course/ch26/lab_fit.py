"""Lab of notebook 26: the line through the times of a run's steps."""

from __future__ import annotations

from collections.abc import Callable
from math import isclose
from random import Random
from typing import Any

from minivllm.course.grading.function_lab import FunctionLab, WrongEntry, call
from minivllm.course.grading.run import Fault


def my_fit_line(tokens, seconds):
    """Cost of a step, ``a + b * tokens`` seconds, from the steps of a run.

    Args:
        tokens: how many tokens each step computed; at least two of them differ.
        seconds: how long each step took.

    Returns: the pair (a, b) with the least sum of squared errors, among those that are not
    negative: no step costs less than nothing, and no token does.
    """
    raise NotImplementedError


def fit_line(tokens, seconds):
    n = len(tokens)
    x, y = sum(tokens) / n, sum(seconds) / n
    spread = sum((t - x) ** 2 for t in tokens)
    b = sum((t - x) * (s - y) for t, s in zip(tokens, seconds, strict=True)) / spread
    a = y - b * x
    if b < 0:
        return y, 0.0
    if a < 0:
        products = sum(t * s for t, s in zip(tokens, seconds, strict=True))
        return 0.0, products / sum(t * t for t in tokens)
    return a, b


def check_fit_line(function: Callable, seed: int) -> str:
    """Runs with and without noise, some of which would have a negative part."""
    rng = Random(f"lab fit_line {seed}")
    runs = 60
    for number in range(runs):
        _check_run(rng, function, number)
    return f"{runs} runs: exact lines, noisy ones, and those that would go below 0"


def _check_run(rng: Random, function: Callable, number: int) -> None:
    n = rng.randint(3, 12)
    tokens = [1, *(rng.randint(2, 64) for _ in range(n - 1))]
    a, b = rng.uniform(0.001, 0.01), rng.uniform(1e-5, 1e-3)
    noise = 0.0 if number < 10 else 0.3
    if number >= 40:
        a, b = rng.choice([(-0.01, b), (a, -b / 20)])
    seconds = [abs(a + b * t) * (1 + rng.uniform(-noise, noise)) for t in tokens]
    if number >= 40 and a < 0:
        seconds = [max(1e-6, a + b * t + 1e-4 * rng.random()) for t in tokens]
    got = call(function, list(tokens), list(seconds))
    if not isinstance(got, (list, tuple)) or len(got) != 2:
        raise Fault("return a pair: seconds per step, seconds per token")
    right = fit_line(tokens, seconds)
    if all(map(_near, got, right)):
        return
    where = f"{n} steps of {tokens} tokens"
    if all(isinstance(part, (int, float)) for part in got) and min(got) < -1e-9:
        raise WrongEntry(f"{where}: {_short(got)}, and nothing costs less than 0", _short(right))
    raise WrongEntry(f"{where}: not {_short(got)}{_explain(got, tokens, seconds)}", _short(right))


def _explain(got: Any, tokens: list, seconds: list) -> str:
    """Return what a wrong pair forgets."""
    mean = sum(seconds) / len(seconds)
    free = fit_line(tokens, seconds)
    if all(map(_near, got, (free[1], free[0]))):
        return ": the seconds per step come first"
    if _near(got[1], 0) and _near(got[0], mean):
        return ": that is the mean, and tokens cost something here"
    through = sum(t * s for t, s in zip(tokens, seconds, strict=True)) / sum(t * t for t in tokens)
    if _near(got[0], 0) and _near(got[1], through):
        return ": that line goes through 0, and a step costs something by itself"
    return ""


def _near(a: Any, b: float) -> bool:
    return isinstance(a, (int, float)) and isclose(a, b, rel_tol=1e-4, abs_tol=1e-9)


def _short(pair: Any) -> str:
    return ", ".join(f"{n:.6f}" if isinstance(n, float) else repr(n) for n in pair)


LAB = FunctionLab(
    "26",
    "Fit the cost of a step to the times of a run.",
    "The slope is the covariance of tokens and seconds, divided by the variance of tokens. Then "
    "look at the signs: where one part would be negative, fit the other one alone.",
    difficulty=3, minutes=15, stub=my_fit_line, check=check_fit_line,
)  # fmt: skip
