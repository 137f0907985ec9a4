"""Scheduling policies: which request is next, and which is preempted. Swap one in a few lines.

A policy answers three questions and never touches blocks, so no policy can corrupt them.
(notebooks 05, 06)
"""

from __future__ import annotations

from typing import Any

from minivllm.request import Request, Sequence
from minivllm.utils.validation import check, is_one_of


class SchedulingPolicy:
    """First come, first served: vLLM's default, and what a policy of your own changes parts of.

    With ``prefill_first`` waiting requests are admitted before running ones continue; a step that
    admits a request computes nothing else.
    """

    prefill_first = False
    preempted_first = False  # a preempted request goes to the head of the queue, not by its key
    uses_priority = False  # else a request with a priority is refused, not silently ignored

    def key(self, request: Request) -> Any:
        """The request's place in the waiting queue: the smallest key is admitted next."""
        return request.arrival_index

    def victim(self, running: list[Sequence]) -> Sequence:
        """The sequence to preempt when there are too few blocks."""
        return running[-1]

    def may_admit(self, running: list[Sequence]) -> bool:
        """Asked at the beginning of a step: may waiting requests be admitted in it?"""
        return True


class FCFSPolicy(SchedulingPolicy):
    """First come, first served. The request admitted last is preempted first.

    A preempted one is next, also before earlier ones that wait for a slot of their adapter.
    """

    preempted_first = True


class PriorityPolicy(SchedulingPolicy):
    """The smallest ``priority`` first, then the earliest. The least important is preempted."""

    uses_priority = True

    def key(self, request: Request) -> Any:
        return (request.priority, request.arrival_time, request.request_id)

    def victim(self, running: list[Sequence]) -> Sequence:
        return max(running, key=lambda s: (s.request.priority, s.request.arrival_time))


class PrefillFirstPolicy(FCFSPolicy):
    """Prefill first (vLLM V0): a new prompt stops all decodes for the step that computes it."""

    prefill_first = True


class StaticBatchingPolicy(FCFSPolicy):
    """Batches as before Orca (Yu et al. 2022): one must end before the next begins."""

    def may_admit(self, running: list[Sequence]) -> bool:
        return not running


POLICIES = {
    "fcfs": FCFSPolicy,
    "priority": PriorityPolicy,
    "prefill_first": PrefillFirstPolicy,
    "static": StaticBatchingPolicy,
}


def make_policy(policy: str | SchedulingPolicy) -> SchedulingPolicy:
    """A policy by its name, or one of your own as it is.

    Raises:
        ValueError: for an unknown name or something that is no policy.
    """
    known = isinstance(policy, SchedulingPolicy) or is_one_of(policy, POLICIES)
    names = ", ".join(map(repr, POLICIES))
    check(known, "scheduling_policy", policy, f"one of {names} or a SchedulingPolicy")
    return policy if isinstance(policy, SchedulingPolicy) else POLICIES[policy]()
