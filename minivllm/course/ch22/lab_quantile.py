"""Lab of notebook 22: a quantile of a histogram, held to the definition."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

from minivllm.course.grading.function_lab import FunctionLab, WrongEntry, call


def my_quantile(buckets, q):
    """A quantile as Prometheus' histogram_quantile looks it up.

    Args:
        buckets: by upper bound, a string like "0.25": how many observations were at most as large.
            The bounds rise, and the last one is "+Inf".
        q: above 0, at most 1.

    The rank is q times the number of observations. The first bucket that reaches it holds the
    quantile, and observations are taken to be spread evenly between its bounds; below the first
    bound is 0. In the last bucket, which has no end, the answer is the largest bound that is a
    number. Without observations it is nan.

    Returns: a float.
    """
    raise NotImplementedError


def quantile(buckets, q):
    total = buckets["+Inf"]
    if total == 0:
        return float("nan")
    low, below = 0.0, 0
    for bound, count in buckets.items():
        if bound == "+Inf":
            return low
        if count >= q * total:
            return low + (float(bound) - low) * (q * total - below) / (count - below)
        low, below = float(bound), count


def check_quantile(function: Callable, seed: int) -> str:
    """Buckets of all kinds, empty ones and the last one included."""
    rng = Random(f"lab quantile {seed}")
    cases = 0
    worlds = [
        ({"1.0": 0, "+Inf": 0}, 0.5),
        ({"1.0": 4, "2.0": 4, "+Inf": 4}, 1.0),
        ({"0.5": 0, "1.0": 3, "+Inf": 10}, 0.9),
        ({"0.1": 2, "0.25": 2, "0.5": 6, "+Inf": 6}, 0.5),
    ]
    for _ in range(60):
        total = 0
        filled = {}
        for bound in (0.1, 0.25, 0.5, 1.0, 2.5):
            total += rng.choice([0, 0, 1, 3, 10])
            filled[str(bound)] = total
        filled["+Inf"] = total + rng.choice([0, 0, 2])
        worlds.append((filled, rng.choice([0.01, 0.5, 0.9, 0.99, 1.0])))
    for filled, q in worlds:
        got = call(function, dict(filled), q)
        right = _quantile(filled, q)
        same = isinstance(got, (int, float)) and (
            math.isclose(got, right, abs_tol=1e-9) or (math.isnan(got) and math.isnan(right))
        )
        if not same:
            why = _explain(got, filled, q)
            raise WrongEntry(f"of {filled} the {q} quantile is not {got!r}{why}", f"{right:.4g}")
        cases += 1
    return f"as Prometheus says in {cases} histograms, empty ones and unbounded tails included"


def _quantile(filled: dict[str, int], q: float) -> float:
    """By the definition: go through observations that are spread evenly in their buckets."""
    if not filled["+Inf"]:
        return math.nan
    rank = q * filled["+Inf"]
    bounds = [float(bound) for bound in filled]
    index = next(i for i, count in enumerate(filled.values()) if count >= rank)
    if math.isinf(bounds[index]):
        return bounds[index - 1]
    low = bounds[index - 1] if index else 0.0
    below = list(filled.values())[index - 1] if index else 0
    inside = list(filled.values())[index] - below
    return low + (bounds[index] - low) * (rank - below) / inside


def _explain(got: Any, filled: dict, q: float) -> str:
    """Return what a wrong quantile forgets, as far as it can be seen."""
    rank = q * filled["+Inf"]
    bound = next(bound for bound, count in filled.items() if count >= rank)
    if not rank:
        return ": without observations there is none"
    if bound == "+Inf":
        return ": the last bucket has no end, so it is the largest bound that is a number"
    if got == float(bound):
        return ": that is the bucket's bound; go as far into the bucket as the rank does"
    if not isinstance(got, (int, float)) or not got <= float(bound):
        return f": {rank:g} of them are reached in the bucket up to {bound}"
    return f": go into the bucket up to {bound} as far as {rank:g} is from the count below it"


LAB = FunctionLab(
    "22",
    "Write the lookup of a quantile in a histogram.",
    "Keep the bound and the count of the bucket before while you look for the rank.",
    difficulty=2, minutes=15, stub=my_quantile, check=check_quantile,
)  # fmt: skip
