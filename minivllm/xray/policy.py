"""PolicyScheduler: vLLM's scheduler, whose waiting queue a SchedulingPolicy of ours orders.

``MINIVLLM_XRAY_POLICY=module:Class`` names the policy. It says which request is next, by its
``key``; vLLM itself admits, and chooses whom to preempt.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from vllm.v1.core.sched.request_queue import FCFSRequestQueue

from minivllm import envs
from minivllm.logger import init_logger
from minivllm.scheduling.policies import SchedulingPolicy
from minivllm.xray.tracer import TracingScheduler

logger = init_logger(__name__)

_NOT_ASKED = ("may_admit", "victim")  # methods of a policy
_NOT_READ = ("prefill_first",)


class PolicyScheduler(TracingScheduler):
    """Orders the waiting queue before each plan, and records the run as its parent does.

    Raises:
        ValueError: when it is made, if there is no such policy, or vLLM's own is not fcfs.
    """

    def __init__(self, *args, **kwargs):
        self._ours = load_policy(envs.xray_policy())  # vLLM has a `policy` of its own
        self._orders = True
        self._arrivals: dict[str, int] = {}
        super().__init__(*args, **kwargs)
        if type(self.waiting) is not FCFSRequestQueue:
            raise ValueError("a policy of minivllm orders the queue of --scheduling-policy fcfs.")

    def add_request(self, request) -> None:
        self._arrivals[request.request_id] = len(self._arrivals)
        super().add_request(request)

    def schedule(self, *args, **kwargs):
        if self._orders and len(self.waiting) > 1:
            self._order()
        return super().schedule(*args, **kwargs)

    def _order(self) -> None:
        """Put the smallest key first; if the policy raises, leave vLLM's order from now on."""
        try:
            ordered = sorted(self.waiting, key=self._place)
        except Exception as error:
            self._orders = False
            name = type(self._ours).__name__
            logger.error("%s raised %r: vLLM goes on in its own order.", name, error)
            return
        if list(self.waiting) != ordered:
            self.waiting.remove_requests(list(self.waiting))
            for request in ordered:
                self.waiting.add_request(request)

    def _place(self, request: Any) -> tuple:
        """Place of a request of vLLM: preempted ones first if the policy says so, then by key."""
        first = self._ours.preempted_first and request.num_preemptions > 0
        return (not first, self._ours.key(_Seen(request, self._arrivals[request.request_id])))


class _Seen:
    """vLLM's request as a policy sees it: its own fields, and the index of its arrival."""

    def __init__(self, request: Any, arrival_index: int):
        self._request, self.arrival_index = request, arrival_index

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)


def load_policy(name: str) -> SchedulingPolicy:
    """Make the policy that ``module:Class`` names, and log what of it is not asked here.

    Raises:
        ValueError: if it cannot be imported or made, or is no SchedulingPolicy.
    """
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise ValueError(f"MINIVLLM_XRAY_POLICY must be module:Class, got {name!r}.")
    try:
        policy = getattr(import_module(module), attribute)()
    except Exception as error:
        raise ValueError(f"MINIVLLM_XRAY_POLICY={name} cannot be used: {error!r}.") from error
    if not isinstance(policy, SchedulingPolicy):
        raise ValueError(f"MINIVLLM_XRAY_POLICY must be a SchedulingPolicy, got {name}.")
    kind = type(policy)
    unused = [n for n in _NOT_ASKED if getattr(kind, n) is not getattr(SchedulingPolicy, n)]
    unused += [n for n in _NOT_READ if getattr(policy, n)]
    if unused:
        logger.warning("%s orders vLLM's queue; its %s are not asked: vLLM admits and preempts.",
                       kind.__name__, " and ".join(unused))  # fmt: skip
    return policy
