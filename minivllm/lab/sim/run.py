"""simulate: serve a workload with the real scheduler, in simulated time and without a model.

Requests arrive, the scheduler plans a step, the cost model says how long it takes, its tokens are
appended. Only the token ids are made up.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence as AnySequence

from minivllm.kv.manager import KVCacheManager
from minivllm.lab.contiguous.manager import RESERVATIONS, ContiguousKVCacheManager
from minivllm.lab.sim.cost import HARDWARE, MODELS, CostModel, Hardware, ModelShape, attended_pairs
from minivllm.lab.sim.loop import (
    Arrivals,
    LimitedArrivals,
    make_scheduler,
    run_steps,
    runner_output,
)
from minivllm.lab.sim.requests import RandomSurvivors, make_request
from minivllm.lab.sim.result import RequestTimes, SimulationResult
from minivllm.lab.sim.slot_usage import MemoryMeter
from minivllm.lab.sim.workloads import SimRequest, check_entry
from minivllm.request import Request, Sequence
from minivllm.scheduling.output import ModelRunnerOutput, SchedulerOutput
from minivllm.scheduling.policies import SchedulingPolicy
from minivllm.scheduling.scheduler import Scheduler
from minivllm.utils.validation import check, is_int

MANAGERS = ("paged", *(f"contiguous-{reservation}" for reservation in RESERVATIONS))

_MOST = 10**7  # blocks, tokens or sequences: each takes memory here, too


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
    max_concurrency: int | None = None,
) -> SimulationResult:
    """Serve a workload in simulated time.

    Args:
        workload: what is asked, see ``minivllm.lab.sim.workloads``.
        hardware: a preset of ``minivllm.lab.sim.cost.HARDWARE`` by name, or your own.
        model: a preset of ``minivllm.lab.sim.cost.MODELS`` by name, or your own.
        policy: who comes first, by name, or an object of your own.
        manager: "paged", or how a contiguous one reserves: "contiguous-exact", "contiguous-pow2",
            "contiguous-max". Those get the same number of slots.
        allocator: of a contiguous manager, "buddy" or "first_fit".
        num_blocks: the pool's size, the null block included; None: what the weights leave.
        max_model_len: None: what the model knows.
        block_size, gpu_memory_utilization, max_num_seqs, max_num_batched_tokens,
            enable_chunked_prefill, enable_prefix_caching: as for ``LLM``.
        max_concurrency: the most requests that the client has under way, who holds others back;
            None: each is sent when its time has come.

    Raises:
        ValueError: for an unknown name, a value out of range, a request that could never run, or a
            policy that never admits a request.
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
        ok = is_int(value, low) and value <= _MOST
        check(ok, name, value, f"an integer from {low} to {_MOST}")
    ok = max_concurrency is None or is_int(max_concurrency, 1)
    check(ok, "max_concurrency", max_concurrency, "None or an integer of at least 1")
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
    ok = is_int(num_blocks, 2) and num_blocks <= _MOST
    check(ok, "num_blocks", num_blocks, f"an integer from 2 to {_MOST}")
    if manager == "paged":
        kv_manager = KVCacheManager(num_blocks, block_size, enable_prefix_caching)
    else:
        kv_manager = ContiguousKVCacheManager(
            (num_blocks - 1) * block_size,
            max_model_len,
            manager.removeprefix("contiguous-"),
            allocator,
        )
    scheduler = make_scheduler(
        kv_manager,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        enable_chunked_prefill=enable_chunked_prefill,
        policy=policy,
    )
    arrivals = Arrivals()
    if max_concurrency is not None:
        arrivals = LimitedArrivals(scheduler, max_concurrency)
    run = _Run(workload, scheduler, cost, arrivals)
    run.until_all_is_done()
    return run.result(time.perf_counter() - begin)


class _Run:
    """One simulation: a workload, a scheduler, a clock, and what is measured."""

    def __init__(
        self,
        workload: AnySequence[SimRequest],
        scheduler: Scheduler,
        cost: CostModel,
        arrivals: Arrivals,
    ):
        self.workload, self.scheduler, self.cost = workload, scheduler, cost
        self.now = 0.0
        self.num_steps = 0
        self.requests: dict[str, Request] = {}  # by the ids of their sequences
        self.last_token_times: dict[str, float] = {}  # by the ids of sequences
        self.inter_token_times = array("d")
        self.memory = MemoryMeter(scheduler)
        self.survivors = RandomSurvivors()
        self.arrivals = arrivals
        self.followers: dict[str, list[int]] = {}  # by request id: who comes after its end
        for index, entry in enumerate(workload):
            check_entry(entry, index)
            if entry.after is None:
                self._let_come(index, entry.arrival_time)
            else:
                self.followers.setdefault(str(entry.after), []).append(index)

    def until_all_is_done(self) -> None:
        for step in run_steps(self.scheduler, self.arrivals, self._execute, self._time):
            self.num_steps += 1
            self._note_tokens(step.updated)
            for seq_id in self.scheduler.next_output.finished_req_ids:
                self._finish(self.requests[seq_id])

    def _let_come(self, index: int, arrival_time: float) -> None:
        request = make_request(self.workload[index], str(index), arrival_time)
        self.arrivals.push(request, index)
        self.requests |= dict.fromkeys(request.seq_ids, request)

    def _time(self) -> float:
        """The current time; if nothing is unfinished, the time of the next arrival."""
        if not self.scheduler.requests:
            self.now = max(self.now, self.arrivals.next_time)
        return self.now

    def _note_tokens(self, updated: list[Sequence]) -> None:
        """Record the time of a new token of each of these sequences."""
        now, last_token_times, gaps = self.now, self.last_token_times, self.inter_token_times
        for seq in updated:
            seq_id = seq.seq_id
            before = last_token_times.get(seq_id)
            if before is not None:
                gaps.append(now - before)
            elif seq.request.metrics.first_token_time is None:
                seq.request.metrics.first_token_time = now
            last_token_times[seq_id] = now

    def _execute(
        self, scheduler: Scheduler, scheduler_output: SchedulerOutput
    ) -> ModelRunnerOutput:
        """Fake forward pass: repeats each sequence's last token, and advances the clock.

        Every token of every sequence passes here, so cost and memory are counted in one loop.
        """
        scheduled = scheduler_output.num_scheduled_tokens
        block_size = scheduler.kv_manager.block_size
        sampled, num_tokens, num_attended, num_kv, num_seen, num_empty = {}, 0, 0, 0, 0, 0
        for seq in scheduler.running:
            seq_id, token_ids, context = seq.seq_id, seq.token_ids, seq.num_computed_tokens
            num_new = scheduled.get(seq_id, 0)
            num_seen += context
            num_empty += -context % block_size
            if num_new == 1:
                num_attended += context
            elif num_new:
                num_attended += attended_pairs(context - num_new, num_new)
            else:
                continue  # it runs, but the budget did not reach it
            num_tokens += num_new
            num_kv += context
            if context == len(token_ids):
                sampled[seq_id] = token_ids[-1]
        for seq_id, children in scheduler_output.forks.items():
            for index, child_id in enumerate(children, 1):
                sampled[child_id] = sampled[seq_id] + (index << 32)  # an answer of its own
        seconds = self.cost.step_seconds(num_tokens, num_attended, num_kv + num_tokens)
        self.memory.add(seconds, num_seen, num_empty)
        self.now += seconds
        beams = any(seq.request.beam_params is not None for seq in scheduler.running)
        survivors = self.survivors.draw(scheduler.sequences, sampled) if beams else None
        return runner_output(sampled, survivors)

    def _finish(self, request: Request) -> None:
        """Record that a sequence finished; after a request's last one, let its followers arrive."""
        request.metrics.last_token_time = self.now
        if request.request_id in self.scheduler.requests:
            return
        for seq_id in request.seq_ids:
            self.last_token_times.pop(seq_id, None)
        for follower in self.followers.pop(request.request_id, ()):
            pause = self.workload[follower].arrival_time
            self._let_come(follower, self.now + pause)

    def result(self, wall_seconds: float) -> SimulationResult:
        cache = self.scheduler.kv_manager.prefix_cache
        queried = cache.stats.queries if cache is not None else 0
        return SimulationResult(
            requests=tuple(_times(self.requests[str(i)]) for i in range(len(self.workload))),
            inter_token_times=self.inter_token_times,
            seconds=self.now,
            num_steps=self.num_steps,
            num_preemptions=self.scheduler.num_preemptions,
            num_blocks=self.scheduler.kv_manager.block_pool.num_usable_blocks,
            block_size=self.scheduler.kv_manager.block_size,
            prefix_hit_rate=cache.stats.hits / queried if queried else 0.0,
            memory=self.memory.all_steps.shares,
            memory_under_load=self.memory.under_load.shares,
            tokens_in_held=self.memory.all_steps.tokens_in_held,
            saved_by_sharing=self.memory.saved_by_sharing,
            wall_seconds=wall_seconds,
        )


def _preset(name: str, value, presets: dict):
    """A preset by its name, or the object itself."""
    kind = type(next(iter(presets.values())))
    known = isinstance(value, kind) or value in tuple(presets)
    names = ", ".join(map(repr, presets))
    check(known, name, value, f"one of {names} or a {kind.__name__}")
    return value if isinstance(value, kind) else presets[value]


def _times(request: Request) -> RequestTimes:
    metrics, seq = request.metrics, request.seqs[0]
    return RequestTimes(
        request_id=request.request_id,
        arrival_time=metrics.arrival_time,
        first_token_time=metrics.first_token_time,
        finished_time=metrics.last_token_time,
        num_prompt_tokens=seq.num_prompt_tokens,
        num_output_tokens=seq.num_output_tokens,
        num_samples=len(request.seqs),
        num_cached_tokens=request.num_cached_tokens,
        num_preemptions=request.num_preemptions,
    )
