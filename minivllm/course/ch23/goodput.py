"""goodput_by_limit: requests a second that pools serve in time, for several limits at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from minivllm.lab.sim.disaggregation import PoolTimes, poisson, simulate_pools
from minivllm.lab.sim.pool_costs import PoolCost

TTFT = 0.4  # the limit of the first token, in seconds
ATTAIN = 0.9  # the share of requests that must keep both limits


def serve_pools(
    rate: float, num_prefill: int, cost: PoolCost, chunk: int = 0, num_requests: int = 300
) -> list[PoolTimes]:
    """Times of requests with 512 tokens in and 64 out, which come at random.

    Args:
        rate: requests a second.
        num_prefill: engines that compute prompts, beside one that decodes; 0: one does both.
        cost: of its steps.
        chunk: tokens of a step at most; 0: prompts are computed whole, and before decodes.
        num_requests: that are served.
    """
    return simulate_pools(
        poisson(rate, num_prompt=512, num_output=64, num_requests=num_requests, seed=0),
        cost,
        num_prefill=num_prefill,
        policy="fcfs" if num_prefill or chunk else "prefill_first",
        first_token="prefill",
        max_num_batched_tokens=chunk or 16384,
    )


def share_in_time(times: Sequence[PoolTimes], tpot: float) -> float:
    """Share of the requests that keep the limit of the first token, and this one in seconds."""
    return sum(one.ttft <= TTFT and one.tpot <= tpot for one in times) / len(times)


def goodput_by_limit(
    limits: Iterable[float], rates: Sequence[float], num_prefill: int, cost: PoolCost
) -> dict[float, float]:
    """The most requests a second of which enough are in time, by the limit of TPOT in ms.

    Each rate is simulated once; between two of them the share is taken for a straight line.

    Args:
        limits: of TPOT, in ms.
        rates: requests a second, rising; enough are in time at the first one, too few at the last.
        num_prefill, cost: as for ``serve_pools``.
    """
    times = {rate: serve_pools(rate, num_prefill, cost) for rate in rates}
    found = {}
    for limit in limits:
        shares = {rate: share_in_time(times[rate], limit / 1000) for rate in rates}
        found[limit] = next(
            low + (high - low) * (shares[low] - ATTAIN) / (shares[low] - shares[high])
            for low, high in pairwise(rates)
            if shares[low] >= ATTAIN > shares[high]
        )
    return found
