"""Small runs that the tests of figures draw: chunks, preemptions, shared and cached blocks."""

import random

from minivllm.kv.manager import KVCacheManager
from minivllm.lab.sim.loop import fake_execute, run_step, run_steps, runner_output
from minivllm.lab.sim.make import make_scheduler
from minivllm.request import Request
from minivllm.sampling_params import SamplingParams
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
