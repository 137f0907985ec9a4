"""Chi-square test: do draws come from a distribution?"""

from __future__ import annotations

from collections.abc import Mapping
from math import erfc, exp, gamma, sqrt


def chi_square(counts: Mapping[str, int], probs: Mapping[str, float]) -> tuple[float, float]:
    """Compare counts of draws with probabilities.

    Args:
        counts: draws of each outcome.
        probs: the probability of each outcome, more than 0.

    Returns:
        The statistic, and its p-value: the chance that draws from ``probs`` are as far off, or
        further.
    """
    draws = sum(counts.values())
    statistic = sum((counts[x] - draws * p) ** 2 / (draws * p) for x, p in probs.items())
    return statistic, _share_above((len(probs) - 1) / 2, statistic / 2)


def _share_above(shape: float, x: float) -> float:
    """Share of a gamma distribution above x; its shape is a multiple of a half."""
    share, at = (erfc(sqrt(x)), 0.5) if shape % 1 else (exp(-x), 1.0)
    while at < shape:
        share += x**at * exp(-x) / gamma(at + 1)
        at += 1
    return share
