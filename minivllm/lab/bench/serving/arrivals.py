"""Arrival times of a load. (vLLM: vllm/benchmarks/serve.py)"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

RAMP_UP_STRATEGIES = ("linear", "exponential")


def ramp_up(num_requests: int, strategy: str, start: float, end: float) -> list[float]:
    """The rate at each request, in requests a second, while it grows from ``start`` to ``end``.

    Args:
        num_requests: how many.
        strategy: ``"linear"`` adds as much for each request, ``"exponential"`` multiplies.
        start, end: of the first request and of the last.
    """
    progress = np.arange(num_requests) / max(num_requests - 1, 1)
    if strategy == "linear":
        return (start + (end - start) * progress).tolist()
    return (start * (end / start) ** progress).tolist()


def arrival_times(
    request_rates: Sequence[float], burstiness: float = 1.0, seed: int = 0
) -> list[float]:
    """Times at which requests are sent, in seconds after the start.

    The gaps are drawn from a gamma distribution, then all are stretched alike, so that the last
    request comes as late as if all gaps were ``1 / rate``: seeds differ in how requests bunch, not
    in how many come a second.

    Args:
        request_rates: requests a second when each comes; infinite ones come at once.
        burstiness: shape of the distribution. 1 is a Poisson process, less comes in bursts, more
            is more even, infinite is a metronome.
        seed: equal seeds give equal times.
    """
    mean_gaps = 1 / np.asarray(request_rates, dtype=float)
    gaps = mean_gaps
    if not np.isinf(burstiness):
        gaps = np.random.default_rng(seed).gamma(burstiness, mean_gaps / burstiness)
    times = np.cumsum(gaps)
    if times[-1] > 0:
        times *= mean_gaps.sum() / times[-1]
    return times.tolist()
