"""Small runs that the tests of figures draw: chunks, preemptions, shared and cached blocks."""

import random

from minivllm.kv.manager import KVCacheManager
from minivllm.lab.sim.replay import sample_for
from minivllm.records import BlocksAllocated, RequestAdded, Sampled, Scheduled
from minivllm.request import Request
from minivllm.sampling_params import SamplingParams
from minivllm.scheduling.scheduler import Scheduler
from minivllm.trace import Trace


def traced_run(
    lengths, max_tokens, num_blocks, budget=64, arrivals=None, max_num_seqs=64, block_size=4
):
    """Trace a scheduler that is fed random tokens in place of a model's."""
    trace = Trace(num_blocks, block_size, budget)
    kv_manager = KVCacheManager(num_blocks, block_size, trace=trace)
    scheduler = Scheduler(kv_manager, budget, max_num_seqs, max_model_len=256, trace=trace)
    rng = random.Random(0)
    todo = list(zip(arrivals or [0] * len(lengths), lengths, max_tokens, strict=True))
    num_added = 0
    while todo or scheduler.has_unfinished_requests():
        while todo and todo[0][0] <= trace.num_steps:
            _, length, limit = todo.pop(0)
            prompt = [rng.randrange(97) for _ in range(length)]
            params = SamplingParams(max_tokens=limit)
            scheduler.add_request(Request(f"req-{num_added}", prompt, params))
            num_added += 1
        plan = scheduler.schedule()
        sampled = {
            seq_id: rng.randrange(97)
            for seq_id, n in plan.num_scheduled_tokens.items()
            if plan.num_computed_tokens[seq_id] + n == scheduler.sequences[seq_id].num_tokens
        }
        scheduler.update_from_output(plan, sampled)
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


def cached():
    """A finished request whose full blocks can still be found, and one that found them."""
    trace = Trace(12, 4, 64)
    manager = KVCacheManager(12, 4, enable_prefix_caching=True, trace=trace)
    scheduler = Scheduler(manager, 64, 8, max_model_len=64, trace=trace)
    for name, length in (("first", 10), ("second", 6), ("third", 13)):
        scheduler.add_request(Request(name, list(range(length)), SamplingParams(max_tokens=1)))
        plan = scheduler.schedule()
        scheduler.update_from_output(plan, {name: 5})
    return trace


def sampled():
    """One request with three samples, beside one with a single one."""
    trace = Trace(20, 4, 64)
    manager = KVCacheManager(20, 4, trace=trace)
    scheduler = Scheduler(manager, 64, 8, max_model_len=64, trace=trace)
    scheduler.add_request(Request("x", list(range(6)), SamplingParams(n=3, max_tokens=4)))
    scheduler.add_request(Request("y", list(range(3)), SamplingParams(max_tokens=4)))
    while scheduler.has_unfinished_requests():
        plan = scheduler.schedule()
        scheduler.update_from_output(plan, sample_for(scheduler, plan))
    return trace
