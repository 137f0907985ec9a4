"""Arrival times of a load. (vLLM: vllm/benchmarks/serve.py)"""

from __future__ import annotations

import math

import numpy as np


def arrival_times(
    num_requests: int, request_rate: float, burstiness: float = 1.0, seed: int = 0
) -> list[float]:
    """When each request is sent, in seconds after the start.

    The gaps are drawn from a gamma distribution, then all are stretched alike, so that the last
    request comes after ``num_requests / request_rate`` seconds: seeds differ in how requests
    bunch, not in how many come a second.

    Args:
        num_requests: how many.
        request_rate: requests a second; infinite sends all of them at once.
        burstiness: shape of the distribution. 1 is a Poisson process, less comes in bursts, more
            is more even, infinite is a metronome.
        seed: equal seeds give equal times.
    """
    if math.isinf(request_rate):
        return [0.0] * num_requests
    if math.isinf(burstiness):
        gaps = np.full(num_requests, 1 / request_rate)
    else:
        scale = 1 / (request_rate * burstiness)
        gaps = np.random.default_rng(seed).gamma(burstiness, scale, num_requests)
    times = np.cumsum(gaps)
    if times[-1] > 0:
        times *= num_requests / request_rate / times[-1]
    return times.tolist()
