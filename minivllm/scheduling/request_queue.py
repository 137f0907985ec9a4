"""RequestQueue: requests that wait, in the order of a policy.

(vLLM: vllm/v1/core/sched/request_queue.py)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from contextlib import suppress

from minivllm.request import Request
from minivllm.scheduling.policies import SchedulingPolicy


class RequestQueue(list[Request]):
    """List of requests by the policy's key, the next one first."""

    def __init__(self, policy: SchedulingPolicy):
        super().__init__()
        self._policy = policy
        # Requests that wait beside the queue and hold blocks already, by id: they come first.
        self.holding: Mapping[str, Request] = {}

    def in_order(self) -> list[Request]:
        """Return all that wait, in the order of admission."""
        return [*self.holding.values(), *self]

    def add(self, request: Request) -> int:
        """Insert a request where the policy puts it, behind those with its key.

        Returns:
            Its index. If the policy raises, nothing has changed.
        """
        index = bisect_right(self, self._policy.key(request), key=self._policy.key)
        self.insert(index, request)
        return index

    def add_preempted(self, request: Request) -> int:
        """Insert a preempted request: at the head, or by its key. Returns its index."""
        if not self._policy.preempted_first:
            return self.add(request)
        self.insert(0, request)
        return 0

    def discard(self, request: Request) -> None:
        """Remove a request, if it is in the queue."""
        if request in self:
            self.remove(request)

    def refill(self, requests: Iterable[Request]) -> None:
        """Replace all requests. If the policy raises, they stand by their arrival."""
        self[:] = sorted(requests, key=lambda request: request.arrival_index)
        with suppress(Exception):
            self.sort(key=self._policy.key)
