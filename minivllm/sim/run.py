"""``simulate``: a workload through the very scheduler that serves, with a clock and no model.

The loop is a server's: whoever has arrived joins the queue, the scheduler plans a step, the cost
model says how long it takes, its tokens are appended. Only the token ids are made up.
"""

from __future__ import annotations

import heapq
import time
from array import array
from collections.abc import Sequence as AnySequence

from minivllm.kv.contiguous import RESERVATIONS, ContiguousKVCacheManager
from minivllm.kv.manager import KVCacheManager
from minivllm.logger import silenced
from minivllm.request import Request
from minivllm.sampling_params import SamplingParams
from minivllm.scheduling.output import SchedulerOutput
from minivllm.scheduling.policies import SchedulingPolicy, make_policy
from minivllm.scheduling.scheduler import Scheduler
from minivllm.sim.cost import HARDWARE, MODELS, CostModel, Hardware, ModelShape, attended_pairs
from minivllm.sim.memory import SlotMeter, slot_usage
from minivllm.sim.result import RequestTimes, SimulationResult
from minivllm.sim.workloads import SimRequest
from minivllm.validation import check, is_int, is_number

MANAGERS = ("paged", *(f"contiguous-{reservation}" for reservation in RESERVATIONS))


def simulate(
    workload: AnySequence[SimRequest],
    *,
    hardware: str | Hardware = "a100",
    model: str | ModelShape = "llama-8b",
    policy: str | SchedulingPolicy = "fcfs",
    manager: str = "paged",
    allocator: str = "buddy",
    num_blocks: int | None = None,
    block_size: int = 16,
    gpu_memory_utilization: float = 0.9,
    max_model_len: int | None = None,
    max_num_seqs: int = 256,
    max_num_batched_tokens: int = 4096,
    enable_chunked_prefill: bool = True,
    enable_prefix_caching: bool = True,
) -> SimulationResult:
    """Serve a workload in simulated time.

    Args:
        workload: what is asked, see ``minivllm.sim.workloads``.
        hardware: a preset of ``minivllm.sim.cost.HARDWARE`` by name, or your own.
        model: a preset of ``minivllm.sim.cost.MODELS`` by name, or your own.
        policy: who comes first, by name, or an object of your own.
        manager: "paged", or how a contiguous one reserves: "contiguous-exact", "contiguous-pow2",
            "contiguous-max". Those get the same number of slots.
        allocator: of a contiguous manager, "buddy" or "first_fit".
        num_blocks: the pool's size, the null block included; None: what the weights leave.
        max_model_len: None: what the model knows.
        block_size, gpu_memory_utilization, max_num_seqs, max_num_batched_tokens,
            enable_chunked_prefill, enable_prefix_caching: as for ``LLM``.

    Raises:
        ValueError: for an unknown name, a value out of range, or a request that could never run.
    """
    begin = time.perf_counter()
    check(len(workload) > 0, "workload", len(workload), "at least one request")
    cost = CostModel(_preset("hardware", hardware, HARDWARE), _preset("model", model, MODELS))
    max_model_len = cost.model.max_model_len if max_model_len is None else max_model_len
    for name, value, low in (
        ("block_size", block_size, 1),
        ("max_num_seqs", max_num_seqs, 1),
        ("max_num_batched_tokens", max_num_batched_tokens, 1),
        ("max_model_len", max_model_len, 2),
    ):
        check(is_int(value, low), name, value, f"an integer of at least {low}")
    check(
        enable_chunked_prefill or max_num_batched_tokens >= max_model_len,
        "max_num_batched_tokens",
        max_num_batched_tokens,
        f"at least max_model_len={max_model_len} when enable_chunked_prefill=False, "
        "since a prompt is then never split",
    )
    check(manager in MANAGERS, "manager", manager, "one of " + ", ".join(map(repr, MANAGERS)))
    if num_blocks is None:
        num_blocks = cost.num_blocks(block_size, gpu_memory_utilization)
    check(is_int(num_blocks, 2), "num_blocks", num_blocks, "an integer of at least 2")
    if manager == "paged":
        kv_manager = KVCacheManager(num_blocks, block_size, enable_prefix_caching)
    else:
        kv_manager = ContiguousKVCacheManager(
            (num_blocks - 1) * block_size,
            max_model_len,
            manager.removeprefix("contiguous-"),
            allocator,
        )
    scheduler = Scheduler(
        kv_manager,
        max_num_batched_tokens,
        max_num_seqs,
        max_model_len,
        enable_chunked_prefill=enable_chunked_prefill,
        policy=make_policy(policy),
    )
    run = _Run(workload, scheduler, cost)
    with silenced("minivllm.scheduling.preemption"):
        run.until_all_is_done()
    return run.result(time.perf_counter() - begin)


class _Run:
    """One workload on its way through one scheduler."""

    def __init__(self, workload: AnySequence[SimRequest], scheduler: Scheduler, cost: CostModel):
        self.workload, self.scheduler, self.cost = workload, scheduler, cost
        self.now = 0.0
        self.num_steps = 0
        self.requests: dict[int, Request] = {}  # by their index in the workload
        self.inter_token_times = array("d")
        self.memory, self.memory_under_load = SlotMeter(), SlotMeter()
        self.arrivals: list[tuple[float, int]] = []  # a heap
        self.followers: dict[str, list[int]] = {}  # by request id: who comes after its end
        for index, entry in enumerate(workload):
            _validate(entry, index)
            if entry.after is None:
                self.arrivals.append((entry.arrival_time, index))
            else:
                self.followers.setdefault(str(entry.after), []).append(index)
        heapq.heapify(self.arrivals)

    def until_all_is_done(self) -> None:
        scheduler, arrivals = self.scheduler, self.arrivals
        while arrivals or scheduler.requests:
            if not scheduler.requests:
                self.now = max(self.now, arrivals[0][0])  # nothing to do until somebody comes
            while arrivals and arrivals[0][0] <= self.now:
                self._arrive(*heapq.heappop(arrivals))
            self._step()

    def _arrive(self, arrival_time: float, index: int) -> None:
        entry = self.workload[index]
        params = SamplingParams(max_tokens=entry.num_output, ignore_eos=True)
        request = Request(str(index), entry.prompt_token_ids, params, arrival_time=arrival_time)
        self.scheduler.add_request(request)
        self.requests[index] = request

    def _step(self) -> None:
        scheduler = self.scheduler
        plan = scheduler.schedule()
        sampled, seconds = self._execute(plan)
        usage = slot_usage(scheduler, plan)
        self.memory.add(usage, seconds)
        if scheduler.waiting:
            self.memory_under_load.add(usage, seconds)
        self.num_steps += 1
        self.now = now = self.now + seconds
        for seq in scheduler.update_from_output(plan, sampled):
            metrics = seq.request.metrics
            if metrics.first_token_time is None:
                metrics.first_token_time = now
            else:
                self.inter_token_times.append(now - metrics.last_token_time)
            metrics.last_token_time = now
        for request_id in scheduler.finished_req_ids:
            for follower in self.followers.get(request_id, ()):
                pause = self.workload[follower].arrival_time
                heapq.heappush(self.arrivals, (now + pause, follower))

    def _execute(self, plan: SchedulerOutput) -> tuple[dict[str, int], float]:
        """In place of a model: who caught up says its last token again. And what it took."""
        sampled, num_tokens, num_attended, num_kv = {}, 0, 0, 0
        scheduled = plan.num_scheduled_tokens
        for seq in self.scheduler.running:
            num_new = scheduled.get(seq.seq_id)
            if num_new is None:
                continue
            context = seq.num_computed_tokens + num_new
            num_tokens += num_new
            num_kv += context + num_new
            if num_new == 1:
                num_attended += context
            else:
                num_attended += attended_pairs(seq.num_computed_tokens, num_new)
            if context == len(seq.token_ids):
                sampled[seq.seq_id] = seq.token_ids[-1]
        return sampled, self.cost.step_seconds(num_tokens, num_attended, num_kv)

    def result(self, wall_seconds: float) -> SimulationResult:
        cache = self.scheduler.kv_manager.prefix_cache
        queried = cache.num_queried_tokens if cache is not None else 0
        return SimulationResult(
            requests=tuple(_times(self.requests[i]) for i in range(len(self.workload))),
            inter_token_times=self.inter_token_times,
            seconds=self.now,
            num_steps=self.num_steps,
            num_preemptions=self.scheduler.num_preemptions,
            num_blocks=self.scheduler.kv_manager.block_pool.num_usable_blocks,
            block_size=self.scheduler.kv_manager.block_size,
            prefix_hit_rate=cache.num_hit_tokens / queried if queried else 0.0,
            memory=self.memory.shares,
            memory_under_load=self.memory_under_load.shares,
            tokens_in_held=self.memory.tokens_in_held,
            wall_seconds=wall_seconds,
        )


def _preset(name: str, value, presets: dict):
    """A preset by its name, or the object itself."""
    kind = type(next(iter(presets.values())))
    known = isinstance(value, kind) or value in tuple(presets)
    names = ", ".join(map(repr, presets))
    check(known, name, value, f"one of {names} or a {kind.__name__}")
    return value if isinstance(value, kind) else presets[value]


def _validate(entry: SimRequest, index: int) -> None:
    ok = is_number(entry.arrival_time) and entry.arrival_time >= 0
    where = f"workload[{index}]"
    check(ok, f"{where}.arrival_time", entry.arrival_time, "a number of seconds of at least 0")
    ok = entry.after is None or (is_int(entry.after, 0) and entry.after < index)
    check(ok, f"{where}.after", entry.after, "None or the index of an earlier request")


def _times(request: Request) -> RequestTimes:
    metrics, seq = request.metrics, request.seqs[0]
    return RequestTimes(
        request_id=request.request_id,
        arrival_time=metrics.arrival_time,
        first_token_time=metrics.first_token_time,
        finished_time=metrics.last_token_time,
        num_prompt_tokens=seq.num_prompt_tokens,
        num_output_tokens=seq.num_output_tokens,
        num_cached_tokens=request.num_cached_tokens,
        num_preemptions=request.num_preemptions,
    )
