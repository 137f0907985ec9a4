"""PolicyScheduler: vLLM's scheduler, whose waiting queue a SchedulingPolicy of ours orders.

``MINIVLLM_XRAY_POLICY=module:Class`` names the policy. It says which request is next, by its
``key``; vLLM itself admits, and chooses whom to preempt.
"""

from __future__ import annotations

from bisect import bisect_right
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
    """Lets requests wait in the order of a policy, and records the run as its parent does.

    Raises:
        ValueError: when it is made, if there is no such policy, or vLLM's own is not fcfs.
    """

    def __init__(self, *args, **kwargs):
        ours = load_policy(envs.xray_policy())  # vLLM has a `policy` of its own
        super().__init__(*args, **kwargs)
        if type(self.waiting) is not FCFSRequestQueue:
            raise ValueError("a policy of minivllm orders the queue of --scheduling-policy fcfs.")
        self.waiting = PolicyQueue(ours)

    def _queue_index(self, request: Any) -> int:
        return self.waiting.last_index


class PolicyQueue(FCFSRequestQueue):
    """vLLM's waiting queue, in which a policy's key says where a request comes in.

    From the moment on in which the policy raises, requests come in where vLLM would have them.
    """

    def __init__(self, policy: SchedulingPolicy):
        super().__init__()
        self._ours = policy
        self._num_arrived = 0
        self._orders = True
        self.last_index = 0  # where the last request came in

    def add_request(self, request: Any) -> None:
        request.arrival_index = self._num_arrived  # a policy's key may ask for it
        self._num_arrived += 1
        self.last_index = self._place(request, otherwise=len(self))
        self.insert(self.last_index, request)

    def prepend_request(self, request: Any) -> None:
        """Insert a preempted request: at the head, or by its key."""
        first = self._ours.preempted_first
        self.last_index = 0 if first else self._place(request, otherwise=0)
        self.insert(self.last_index, request)

    def _place(self, request: Any, otherwise: int) -> int:
        if not self._orders:
            return otherwise
        key = self._ours.key
        try:
            return bisect_right(self, key(request), key=key)  # type: ignore[type-var]
        except Exception as error:
            self._orders = False
            name = type(self._ours).__name__
            logger.error("%s raised %r: vLLM goes on in its own order.", name, error)
            return otherwise


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
