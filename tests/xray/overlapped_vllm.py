"""Drive vLLM's AsyncScheduler with plans in flight, without a model: for test_26_in_vllm.py.

vLLM's CPU build overlaps no plans by itself; ``record_runs.py`` has an engine that is made to. With
MINIVLLM_XRAY_CHECK=1 the tracer compares each step.
"""

import os
import random
import sys
from collections import deque

import torch
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from minivllm.embedded import embedded_model_path
from minivllm.trace.records import BlocksShared, Finished, Preempted
from minivllm.xray import AsyncTracingScheduler

BLOCK = 4
WINDOWS = ((9, None), (6, 9, None), (7,), (13, 13, None), (1, None))  # of KV cache groups


def make_scheduler(num_blocks, windows=(None,), retention_interval=0):
    """vLLM's asynchronous scheduler with this many blocks of four tokens.

    Args:
        windows: of each KV cache group; None: full attention.
        retention_interval: what they keep for others.
    """
    model = str(embedded_model_path())
    models = ModelConfig(model=model, dtype="float32", max_model_len=128, enforce_eager=True)
    limits = SchedulerConfig(
        max_num_seqs=6, max_num_batched_tokens=32, max_model_len=128, is_encoder_decoder=False,
        async_scheduling=True,
    )  # fmt: skip
    cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=True)
    config = VllmConfig(model_config=models, scheduler_config=limits, cache_config=cache)
    cache.num_gpu_blocks = num_blocks
    sizes = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    groups = []
    for index, window in enumerate(windows):
        spec = FullAttentionSpec(**sizes)
        if window is not None:
            spec = SlidingWindowSpec(sliding_window=window, **sizes)
        groups.append(KVCacheGroupSpec([f"layer {index}"], spec))
    pool = KVCacheConfig(
        num_blocks=num_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=groups,
        prefix_cache_retention_interval=retention_interval,
    )
    grammars = StructuredOutputManager(config)
    return AsyncTracingScheduler(config, pool, grammars, BLOCK, hash_block_size=BLOCK)


def add(scheduler, name, rng, hasher):
    """Add a request whose prompt may begin as others do."""
    prompt = [7] * rng.choice([0, 8, 16])
    prompt += [rng.randrange(5, 99) for _ in range(rng.randint(1, 20))]
    params = SamplingParams(temperature=0.0, max_tokens=rng.randint(1, 30), ignore_eos=True)
    scheduler.add_request(Request(name, prompt, params, None, block_hasher=hasher))


def drive(scheduler, seed):
    """Add, plan, abort and update at random, with up to two plans in flight, until all is done."""
    rng, in_flight, names = random.Random(seed), deque(), iter(range(40))
    hasher = get_request_block_hasher(BLOCK, sha256)
    more = True
    while more or scheduler.has_requests() or in_flight:
        for _ in range(rng.choice([0, 0, 1, 3])):
            if more := (name := next(names, None)) is not None:
                add(scheduler, f"{seed}-{name}", rng, hasher)
        if scheduler.has_requests() and len(in_flight) < 2:
            plan, requests = scheduler.schedule(), scheduler.requests
            ids = list(plan.num_scheduled_tokens)
            drawn = [[] if requests[i].is_prefill_chunk else [rng.randrange(5, 99)] for i in ids]
            in_flight.append((plan, ids, drawn))
        if scheduler.requests and rng.random() < 0.05:
            name = rng.choice(list(scheduler.requests))
            scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        if rng.random() < 0.03:
            scheduler.reset_prefix_cache(reset_running_requests=rng.random() < 0.7)
        if in_flight and (len(in_flight) == 2 or rng.random() < 0.6):
            plan, ids, drawn = in_flight.popleft()
            places = {name: i for i, name in enumerate(ids)}
            output = ModelRunnerOutput(req_ids=ids, req_id_to_index=places, sampled_token_ids=drawn)
            scheduler.update_from_output(plan, output)


if __name__ == "__main__":
    init_none_hash(sha256)
    for seed in range(24):
        os.environ["MINIVLLM_XRAY"] = f"{sys.argv[1]}/{seed}.jsonl"
        windows = WINDOWS[seed % len(WINDOWS)] if seed >= 12 else (None,)
        interval = (0, None, 8)[seed % 3] if seed >= 12 else 0
        num_blocks = 18 * len(windows) + 2 * (seed % 4)  # room for the longest
        scheduler = make_scheduler(num_blocks, windows, interval)
        drive(scheduler, seed)
        scheduler.shutdown()  # says how many steps it has compared
        trace = scheduler.recorder.trace
        kinds = (Preempted, BlocksShared, Finished)
        print(*(f"{kind.__name__} {len(list(trace.of(kind)))}" for kind in kinds))
