"""Small runs that the tests of figures draw: chunks, preemptions, shared and cached blocks."""

import random
from concurrent.futures import Future
from math import lcm

from minivllm.config import SchedulerConfig
from minivllm.kv.kv_cache_spec import FullAttentionSpec, SlidingWindowSpec
from minivllm.kv.manager import KVCacheManager
from minivllm.lab.sim.loop import fake_execute, run_step, run_steps, runner_output
from minivllm.lab.sim.make import make_request, make_scheduler, make_traced_scheduler
from minivllm.lab.sim.stub_runner import StubRunner
from minivllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from minivllm.request import Request
from minivllm.sampling_params import SamplingParams
from minivllm.scheduling.async_scheduler import AsyncScheduler
from minivllm.scheduling.batch_queue import BatchQueue
from minivllm.scheduling.scheduler import Scheduler
from minivllm.trace import Trace
from minivllm.trace.records import BlocksAllocated, RequestAdded, Sampled, Scheduled


def traced_run(
    lengths, max_tokens, num_blocks, budget=64, arrivals=None, max_num_seqs=64, block_size=4
):
    """Trace a scheduler that is fed random tokens in place of a model's."""
    trace = Trace(num_blocks, block_size, budget)
    kv_manager = KVCacheManager(num_blocks, block_size, trace=trace)
    scheduler = make_scheduler(
        kv_manager,
        max_num_batched_tokens=budget,
        max_num_seqs=max_num_seqs,
        max_model_len=256,
        trace=trace,
    )
    rng = random.Random(0)
    requests = [
        Request(
            f"req-{i}",
            [rng.randrange(97) for _ in range(length)],
            SamplingParams(max_tokens=limit),
            arrival_time=arrival,
        )
        for i, (arrival, length, limit) in enumerate(
            zip(arrivals or [0] * len(lengths), lengths, max_tokens, strict=True)
        )
    ]

    def execute(scheduler, scheduler_output):
        tokens = fake_execute(scheduler, scheduler_output).sampled_token_ids
        return runner_output({seq_id: rng.randrange(97) for seq_id in tokens})

    for _ in run_steps(scheduler, requests, execute):
        pass
    return trace


def chunked():
    return traced_run([11, 3, 14], [4, 6, 3], num_blocks=12, budget=8)


def preempting():
    return traced_run([9, 7, 5, 6], [24] * 4, num_blocks=14)


HEADS = {"num_kv_heads": 1, "head_size": 1, "bytes_per_number": 1}


def windowed(
    prompts, windows=(9, None), num_output=10, num_blocks=40, budget=8, block_sizes=(4, 4), **limits
):
    """Trace a model whose layers are groups, each with a window or (None) without.

    Args:
        prompts: token ids, or their number, by request.
    """
    specs = [
        FullAttentionSpec(size, **HEADS)
        if window is None
        else SlidingWindowSpec(size, sliding_window=window, **HEADS)
        for size, window in zip(block_sizes, windows, strict=True)
    ]
    caching = {"enable_prefix_caching": False} | limits
    scheduler = make_traced_scheduler(
        num_blocks=num_blocks,
        block_size=lcm(*block_sizes),
        max_num_batched_tokens=budget,
        groups=specs,
        max_model_len=256,
        **caching,
    )
    requests = [
        make_request(name, prompt, num_output, arrival_time=float(index))
        for index, (name, prompt) in enumerate(prompts.items())
    ]
    for _ in run_steps(scheduler, requests):
        scheduler.kv_manager.check_integrity()
    return scheduler.trace


def in_flight(size, lengths, max_tokens, num_blocks=20, budget=16, stops=None, clock=None):
    """Trace a queue of plans, asynchronous if it holds several.

    ``stops`` are requests that end with a stop token, by index, and after how many tokens.
    """
    params = [SamplingParams(max_tokens=limit, ignore_eos=True) for limit in max_tokens]
    for index, number in (stops or {}).items():
        trace = in_flight(1, lengths, max_tokens, num_blocks, budget)
        drawn = [r.token_id for r in trace.of(Sampled) if r.seq_id == f"req-{index}"]
        token = drawn[number - 1]
        params[index] = SamplingParams(max_tokens=max_tokens[index], stop_token_ids=[token])
    trace = Trace(num_blocks, 4, budget, **({} if clock is None else {"clock": clock}))
    manager = KVCacheManager(num_blocks, 4, True, trace=trace)
    config = SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=8, max_model_len=64)
    scheduler = (AsyncScheduler if size > 1 else Scheduler)(config, manager, trace)
    queue, runner = BatchQueue(scheduler, size), StubRunner()

    def execute(plan):
        future = Future()
        future.set_result(runner.execute(plan))
        return future

    for index, length in enumerate(lengths):
        prompt = [(7 * index + i) % 97 for i in range(length)]
        scheduler.add_request(Request(f"req-{index}", prompt, params[index]))
    while queue.has_work:
        if (done := queue.advance(execute)) is not None:
            scheduler.update_from_output(*done)
    return trace


def overlapped():
    """Two requests with two plans in flight; the second one stops, and wastes a token."""
    return in_flight(2, [6, 4], [6, 9], stops={1: 4})


def crowded():
    """The same in a pool that is too small: some are preempted with tokens on their way."""
    return in_flight(2, [9, 7, 5, 6], [14] * 4, num_blocks=14, stops={2: 5})


def pictures():
    """Four requests with three pictures; the cache holds two, and one is encoded twice."""
    sizes = {"max_num_encoder_input_tokens": 12, "encoder_cache_size": 24}
    scheduler = make_traced_scheduler(
        num_blocks=40, block_size=4, max_num_batched_tokens=20, enable_prefix_caching=True,
        max_num_seqs=8, max_model_len=64, **sizes,
    )  # fmt: skip
    asked = {
        "cat and dog": ([("cat", 2, 10), ("dog", 15, 8)], 25, 0),
        "cat": ([("cat", 3, 10)], 15, 0),
        "cow": ([("cow", 0, 12)], 14, 3),
        "dog": ([("dog", 1, 8)], 11, 6),
    }
    requests = [
        make_request(
            name, length, 4, arrival_time=arrival,
            mm_features=[
                MultiModalFeatureSpec(None, "image", item, PlaceholderRange(offset, size))
                for item, offset, size in items
            ],
        )
        for name, (items, length, arrival) in asked.items()
    ]  # fmt: skip
    list(run_steps(scheduler, requests))
    return scheduler.trace


def single():
    return traced_run([5], [8], num_blocks=8)


def crowd():
    rng = random.Random(1)
    lengths = [rng.randrange(3, 60) for _ in range(64)]
    limits = [rng.randrange(5, 90) for _ in range(64)]
    arrivals = sorted(rng.randrange(150) for _ in range(64))
    return traced_run(lengths, limits, num_blocks=200, arrivals=arrivals, max_num_seqs=24)


def sharing():
    """Two sequences with a common first block, as forks and cached prefixes will make them."""
    trace = Trace(8, 4, 64)
    for index, name in enumerate(("x", "y")):
        trace.record(RequestAdded, name, tuple(range(6)), index)
    trace.start_step()
    for name, block_ids in (("x", (1, 2)), ("y", (1, 3))):
        trace.record(BlocksAllocated, name, block_ids)
        trace.record(Scheduled, name, "new", 0, 6, True)
    trace.plan_step()
    for name in ("x", "y"):
        trace.record(Sampled, name, 7)
    trace.end_step()
    return trace


def _scheduler(manager, trace):
    return make_scheduler(
        manager, max_num_batched_tokens=64, max_num_seqs=8, max_model_len=64, trace=trace
    )


def cached():
    """A finished request whose full blocks can still be found, and one that found them."""
    trace = Trace(12, 4, 64)
    scheduler = _scheduler(KVCacheManager(12, 4, enable_prefix_caching=True, trace=trace), trace)
    for name, length in (("first", 10), ("second", 6), ("third", 13)):
        scheduler.add_request(Request(name, list(range(length)), SamplingParams(max_tokens=1)))
        run_step(scheduler)
    return trace


def sampled():
    """One request with three samples, beside one with a single one."""
    trace = Trace(20, 4, 64)
    scheduler = _scheduler(KVCacheManager(20, 4, trace=trace), trace)
    scheduler.add_request(Request("x", list(range(6)), SamplingParams(n=3, max_tokens=4)))
    scheduler.add_request(Request("y", list(range(3)), SamplingParams(max_tokens=4)))
    for _ in run_steps(scheduler):
        pass
    return trace
