"""simulate_pools: engines that compute prompts, engines that continue them, and a link between.

The schedulers are the engine's own, with a connector whose transfers take what the link says. A
request goes to a prefill engine with one token to answer, and when that has come to a decode
engine, which waits for its K and V and computes the last token of the prompt again, as in vLLM.
(notebook 23)
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from collections.abc import Sequence as AnySequence
from dataclasses import dataclass
from random import Random
from typing import Any

from minivllm.kv.manager import KVCacheManager
from minivllm.kv_transfer.base import (
    KVConnectorBase,
    KVConnectorMetadata,
    KVConnectorOutput,
    KVConnectorRole,
)
from minivllm.lab.sim.clock import Clock
from minivllm.lab.sim.cost import CPUSeconds
from minivllm.lab.sim.interconnects import LINKS, Link
from minivllm.lab.sim.make import make_request, make_scheduler
from minivllm.lab.sim.pool_costs import PoolCost, step_seconds
from minivllm.lab.sim.replica import Replica, Size
from minivllm.lab.sim.workloads import SimRequest, check_entry
from minivllm.request import Request, Sequence
from minivllm.scheduling.output import ModelRunnerOutput, SchedulerOutput
from minivllm.scheduling.remote_kvs import connect
from minivllm.scheduling.scheduler import Scheduler
from minivllm.utils.validation import check, is_int

_NEVER = float("inf")
_NO_CPU = CPUSeconds(before=0.0, after=0.0, after_each=0.0, api_each=0.0)


class LinkConnector(KVConnectorBase):
    """A connector whose transfers take simulated time.

    Args:
        clock: of its engine.
        seconds: what a transfer of a number of tokens takes.
    """

    def __init__(self, clock: Clock, seconds: Callable[[int], float]):
        super().__init__(config=None, role=KVConnectorRole.SCHEDULER)
        self.clock = clock
        self.seconds = seconds
        self.sending: dict[str, float] = {}  # by sequence: when its transfer has ended
        self.receiving: dict[str, float] = {}

    def get_num_new_matched_tokens(
        self, seq: Sequence, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """All of a prompt that another engine has computed, once."""
        params = seq.request.kv_transfer_params or {}
        if not params.get("do_remote_prefill") or seq.request.num_preemptions:
            return 0, False
        return params["num_tokens"] - num_computed_tokens, True

    def update_state_after_alloc(
        self, seq: Sequence, block_ids: list[int], num_external_tokens: int
    ) -> None:
        """Begin a transfer: its blocks are there."""
        self.receiving[seq.seq_id] = self.clock.now + self.seconds(num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """Make no message: there is no worker."""
        return KVConnectorMetadata()

    def start_load_kv(self, metadata: KVConnectorMetadata) -> None:
        """No-op: there is no worker."""

    def request_finished(
        self, seq: Sequence, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Keep a prompt's blocks as long as they take on the link."""
        if not (seq.request.kv_transfer_params or {}).get("do_remote_decode"):
            return False, None
        self.sending[seq.seq_id] = self.clock.now + self.seconds(seq.num_prompt_tokens)
        return True, None

    def forget_all(self) -> None:
        """Drop all transfers: the blocks behind them are free."""
        self.sending.clear()
        self.receiving.clear()

    @property
    def next_end(self) -> float:
        """Time at which the next transfer ends; infinity: none is under way."""
        return min((*self.sending.values(), *self.receiving.values()), default=_NEVER)

    def take_ended(self) -> KVConnectorOutput:
        """Return the transfers that have ended by now."""
        return KVConnectorOutput(self._take(self.sending), self._take(self.receiving))

    def _take(self, transfers: dict[str, float]) -> set[str]:
        ended = {name for name, end in transfers.items() if end <= self.clock.now}
        for name in ended:
            del transfers[name]
        return ended


@dataclass(frozen=True)
class _Stages:
    """Cost model as a ``Replica`` asks it; the seconds come from a ``PoolCost``."""

    cost: PoolCost
    num_ranks: int = 1
    cpu: CPUSeconds = _NO_CPU

    @property
    def stages(self) -> list[_Stages]:
        return [self]

    def step_seconds(self, num_tokens: int, num_attended: int, num_kv: int) -> float:
        """An empty step takes no time: the clock goes on to what happens next."""
        return 0.0


class PoolReplica(Replica):
    """One engine of a pool, whose requests may wait for K and V or keep theirs for another.

    Args:
        scheduler: without requests.
        cost: of its steps.
        clock: its own.
        connector: of the scheduler.
    """

    def __init__(
        self, scheduler: Scheduler, cost: PoolCost, clock: Clock, connector: LinkConnector
    ):
        stages: Any = _Stages(cost)
        super().__init__(scheduler, stages, clock)
        self.pool_cost = cost
        self.connector = connector

    def _step_seconds(self, size: Size) -> float:
        return step_seconds(self.pool_cost, size)

    def _execute(self, scheduler: Scheduler, plan: SchedulerOutput) -> ModelRunnerOutput:
        if not plan.num_scheduled_tokens:  # nothing runs: until a transfer ends, or one comes
            arrival = _NEVER if self._next_arrival is None else self._next_arrival
            until = min(self.connector.next_end, arrival)
            if until < _NEVER:
                self.clock.wait_until(until)
        output = super()._execute(scheduler, plan)
        output.kv_connector_output = self.connector.take_ended()
        return output


@dataclass(frozen=True)
class PoolTimes:
    """Times of one request: to its first token, and per token behind it, in seconds."""

    ttft: float
    tpot: float


class _Pools:
    """A run: requests go to a prefill engine, and from there to a decode engine."""

    def __init__(
        self,
        workload: AnySequence[SimRequest],
        prefill: list[PoolReplica],
        decode: list[PoolReplica],
        first_token: str,
    ):
        self.workload = workload
        self.first_token = first_token
        self.prefill = prefill
        self.decode = decode
        # per engine the requests that are to come, the earliest first
        self.to_come: dict[int, list[Request]] = {id(r): [] for r in (*prefill, *decode)}
        self.arrived = [entry.arrival_time for entry in workload]
        self.first = array("d", [0.0] * len(workload))
        self.last = array("d", [0.0] * len(workload))

    def run(self) -> None:
        """First all prefills, which wait for nothing behind them; then all decodes."""
        pool = self.prefill or self.decode
        for index, entry in enumerate(self.workload):
            params = {"do_remote_decode": True} if self.prefill else None
            request = make_request(
                str(index),
                entry.prompt_token_ids,
                1 if self.prefill else entry.num_output,
                arrival_time=self.arrived[index],
                kv_transfer_params=params,
            )
            self.to_come[id(pool[index % len(pool)])].append(request)
        for replica in pool:
            self._serve(replica)
        if not self.prefill:
            return
        # the order in which prompts were done is that in which they reach the decode engines
        done = sorted(range(len(self.workload)), key=lambda index: self.last[index])
        for place, index in enumerate(done):
            if (request := self._request_for_decode(index)) is not None:
                self.to_come[id(self.decode[place % len(self.decode)])].append(request)
        for replica in self.decode:
            self._serve(replica)

    def _request_for_decode(self, index: int) -> Request | None:
        """Make what a decode engine is asked; None if nothing is left to do."""
        entry = self.workload[index]
        prompt = entry.prompt_token_ids
        num_output = entry.num_output
        params = {"do_remote_prefill": True, "num_tokens": len(prompt)}
        if self.first_token == "prefill":  # the prefill engine's token is known, too
            prompt = [*prompt, prompt[-1]]
            num_output -= 1
        if num_output == 0:
            return None
        return make_request(
            str(index),
            prompt,
            num_output,
            arrival_time=self.last[index],
            kv_transfer_params=params,
        )

    def _serve(self, replica: PoolReplica) -> None:
        """Let an engine serve all that will come to it."""
        to_come = self.to_come[id(replica)]
        place = 0
        while place < len(to_come) or replica.has_work:
            if not replica.has_work:
                replica.clock.wait_until(to_come[place].arrival_time)
            while place < len(to_come) and to_come[place].arrival_time <= replica.now:
                replica.send(to_come[place])
                place += 1
            following = to_come[place].arrival_time if place < len(to_come) else None
            for seq in replica.step(following):
                index = int(seq.request.request_id)
                is_first = seq.num_output_tokens == 1 and not self.first[index]
                if is_first or (seq.num_output_tokens == 1 and self.first_token == "decode"):
                    self.first[index] = replica.now
                self.last[index] = replica.now

    def times(self) -> list[PoolTimes]:
        """The times of all requests, in the workload's order."""
        found = []
        for index, entry in enumerate(self.workload):
            ttft = self.first[index] - self.arrived[index]
            steps = max(entry.num_output - 1, 1)
            found.append(PoolTimes(ttft, (self.last[index] - self.first[index]) / steps))
        return found


def simulate_pools(
    workload: AnySequence[SimRequest],
    cost: PoolCost,
    *,
    num_prefill: int = 1,
    num_decode: int = 1,
    link: str | Link = "nvlink3",
    first_token: str = "decode",
    policy: str = "fcfs",
    num_blocks: int = 2560,
    block_size: int = 16,
    max_num_seqs: int = 256,
    max_num_batched_tokens: int = 16384,
) -> list[PoolTimes]:
    """Serve a workload by pools of engines; returns each request's times.

    Args:
        workload: what is asked, without followers and samples.
        cost: of a step, see ``minivllm.lab.sim.pool_costs``.
        num_prefill: engines that compute prompts; 0: none, each engine does both.
        num_decode: engines that continue them.
        link: between the pools, a preset of ``LINKS`` by name or your own.
        first_token: "decode": the client's first token is the decode engine's, which computes the
            last one of the prompt again, as in vLLM; "prefill": it is the prefill engine's, as in
            DistServe.
        policy, num_blocks, block_size, max_num_seqs, max_num_batched_tokens: of each engine.

    Raises:
        ValueError: for a value out of range, by name.
    """
    check(len(workload) > 0, "workload", len(workload), "at least one request")
    for index, entry in enumerate(workload):
        check_entry(entry, index)
        alone = entry.after is None and entry.n == 1
        check(alone, f"workload[{index}]", entry, "without followers and samples")
    check(is_int(num_prefill, 0), "num_prefill", num_prefill, "an integer of at least 0")
    check(is_int(num_decode, 1), "num_decode", num_decode, "an integer of at least 1")
    ok = first_token in ("decode", "prefill")
    check(ok, "first_token", first_token, "'decode' or 'prefill'")
    known = isinstance(link, Link) or link in LINKS
    check(known, "link", link, f"one of {', '.join(LINKS)} or a Link")
    line = link if isinstance(link, Link) else LINKS[link]

    def seconds(num_tokens: int) -> float:
        return line.send_seconds(num_tokens * cost.kv_bytes_per_token)

    def make_replica() -> PoolReplica:
        clock = Clock()
        manager = KVCacheManager(num_blocks, block_size)
        scheduler = make_scheduler(
            manager,
            policy=policy,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=num_blocks * block_size,
        )
        connector = LinkConnector(clock, seconds)
        connect(scheduler, connector)
        return PoolReplica(scheduler, cost, clock, connector)

    prefill = [make_replica() for _ in range(num_prefill)]
    decode = [make_replica() for _ in range(num_decode)]
    pools = _Pools(workload, prefill, decode, first_token)
    pools.run()
    return pools.times()


def goodput(
    serve: Callable[[AnySequence[SimRequest]], list[PoolTimes]],
    *,
    num_prompt: int,
    num_output: int,
    ttft: float,
    tpot: float,
    attain: float = 0.9,
    num_requests: int = 300,
    seeds: AnySequence[int] = (0, 1, 2),
    most: float = 64.0,
) -> float:
    """Return the most requests a second of which a share meets both limits, mean over seeds.

    Args:
        serve: simulates a workload.
        num_prompt, num_output: tokens of each request; they come as a Poisson process.
        ttft, tpot: limits in seconds.
        attain: the share that must meet both.
        num_requests: of a workload.
        seeds: of the arrivals.
        most: requests a second at most.
    """
    found = []
    for seed in seeds:
        low = 0.0
        high = most
        while high - low > 0.02 * max(low, 0.5):
            rate = (low + high) / 2
            times = serve(poisson(rate, num_prompt, num_output, num_requests, seed))
            met = sum(one.ttft <= ttft and one.tpot <= tpot for one in times)
            low, high = (rate, high) if met >= attain * num_requests else (low, rate)
        found.append(low)
    return sum(found) / len(found)


def poisson(
    rate: float, num_prompt: int, num_output: int, num_requests: int, seed: int
) -> list[SimRequest]:
    """Return equal requests, each with its own prompt, that come at random, ``rate`` a second."""
    rng = Random(seed)
    now = 0.0
    requests = []
    for index in range(num_requests):
        now += rng.expovariate(rate)
        requests.append(SimRequest(now, [index] * num_prompt, num_output))
    return requests
