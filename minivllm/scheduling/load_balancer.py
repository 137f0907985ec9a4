"""LoadBalancer: chooses one of several engines for a request.

(vLLM: ``DPLBAsyncMPClient.get_core_engine_for_request`` in vllm/v1/engine/core_client.py)
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass

from minivllm.metrics.stats import SchedulerStats


@dataclass
class EngineLoad:
    """Load of one engine, as its front end knows it."""

    num_in_flight: int = 0  # requests that were given to it and have not ended: exact
    num_waiting: int = 0  # as it said last, and those given to it since
    num_running: int = 0
    kv_cache_usage: float = 0.0  # share of its blocks in use, 0 to 1

    @property
    def score(self) -> float:
        """Requests that it has, more for those that wait for blocks: such a queue moves slowly."""
        penalty = self.num_waiting * 6 * max(0.0, self.kv_cache_usage - 0.5)
        return max(self.num_in_flight, self.num_waiting + self.num_running) + penalty


class LoadBalancer:
    """Chooser of the engine with the smallest score. Of equal ones the first is another each time.

    Args:
        num_engines: how many there are.
    """

    def __init__(self, num_engines: int):
        self.loads = [EngineLoad() for _ in range(num_engines)]
        self._start = 0  # where the next look at the scores begins
        self._engines: dict[str, int] = {}  # by id of a request that has not ended

    def choose(self, request_id: str, rank: int | None = None) -> int:
        """Return the number of the engine that gets a request: ``rank``, if it is given."""
        if rank is None:
            best = float(sys.maxsize)
            rank = 0
            for step in range(len(self.loads)):
                index = (self._start + step) % len(self.loads)
                if (score := self.loads[index].score) < best:
                    best = score
                    rank = index
            self.loads[rank].num_waiting += 1
            self._start = (self._start + 1) % len(self.loads)
        self._engines[request_id] = rank
        self.loads[rank].num_in_flight += 1
        return rank

    def engine_of(self, request_id: str) -> int | None:
        """The engine that has a request; None if it has ended."""
        return self._engines.get(request_id)

    def finish(self, request_ids: Iterable[str]) -> None:
        """Note that requests have ended. Unknown ids are ignored."""
        for request_id in request_ids:
            if (index := self._engines.pop(request_id, None)) is not None:
                self.loads[index].num_in_flight -= 1

    def update(self, index: int, stats: SchedulerStats) -> None:
        """Note what an engine says of its queues and blocks."""
        load = self.loads[index]
        load.num_waiting, load.num_running = stats.num_waiting_reqs, stats.num_running_reqs
        load.kv_cache_usage = stats.kv_cache_usage
