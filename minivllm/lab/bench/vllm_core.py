"""vLLM's own scheduler core, driven without a model, behind the same two methods as ours.

Written for vLLM 0.32 (vllm/v1/core/sched/scheduler.py); imports it only when asked to.
"""

from __future__ import annotations

import importlib.util
import json
import os
import tempfile
import time
from pathlib import Path

from minivllm.lab.bench.machine import best_cpu_seconds
from minivllm.lab.bench.workloads import (
    BLOCK_SIZE,
    MAX_MODEL_LEN,
    PROMPT_TOKENS,
    long_prompt,
    prompt_of,
)
from minivllm.lab.sim.shapes import ONE_LAYER

# Measured elsewhere, on two cores of an AMD EPYC: what is printed where vLLM is not installed.
RECORDED = {"vllm": "0.32.0", "us_per_request": 10.5, "hashing_us_per_block": 3.5}


def is_installed() -> bool:
    """Can vLLM be imported here?"""
    return importlib.util.find_spec("vllm") is not None


class VllmRunningDecodes:
    """vLLM's scheduler with so many sequences in it, all of which decode. Arguments as for ours."""

    def __init__(self, num_requests: int, num_blocks: int, caching: bool):
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        from vllm.v1.outputs import ModelRunnerOutput

        self.num_requests = num_requests
        self._output = ModelRunnerOutput
        self.scheduler = _make_scheduler(num_requests, num_blocks, caching)
        for index in range(num_requests):
            self.scheduler.add_request(_make_request(str(index), prompt_of(index), caching))
        self.step()

    def step(self) -> float:
        """CPU seconds of one ``schedule()`` and one ``update_from_output()``."""
        begin = time.process_time()
        plan = self.scheduler.schedule()
        planned = time.process_time()
        ids = list(plan.num_scheduled_tokens)
        assert len(ids) == self.num_requests, "all of them decode, all the time"
        output = self._output(
            req_ids=ids,
            req_id_to_index={name: index for index, name in enumerate(ids)},
            sampled_token_ids=[[7] for _ in ids],
        )
        executed = time.process_time()
        self.scheduler.update_from_output(plan, output)
        return planned - begin + time.process_time() - executed


def _make_scheduler(num_requests: int, num_blocks: int, caching: bool):
    import torch
    from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    with tempfile.TemporaryDirectory() as directory:  # a config.json is all that is asked for
        Path(directory, "config.json").write_text(json.dumps(ONE_LAYER))
        model = ModelConfig(
            model=directory,
            tokenizer=directory,
            dtype="float32",
            seed=0,
            skip_tokenizer_init=True,
            max_model_len=MAX_MODEL_LEN,
            enforce_eager=True,
        )
    scheduling = SchedulerConfig(
        max_num_seqs=num_requests,
        max_num_batched_tokens=num_requests * PROMPT_TOKENS,
        max_model_len=MAX_MODEL_LEN,
        is_encoder_decoder=False,
        async_scheduling=False,
    )
    cache = CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=caching)
    config = VllmConfig(model_config=model, scheduler_config=scheduling, cache_config=cache)
    cache.num_gpu_blocks = num_blocks
    spec = FullAttentionSpec(
        block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    return Scheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        ),
        log_stats=False,
        block_size=BLOCK_SIZE,
        hash_block_size=BLOCK_SIZE,
        structured_output_manager=StructuredOutputManager(config),
    )


def vllm_hashing_us() -> float:
    """µs to name one block of a long prompt."""
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher

    request = _make_request("long", long_prompt(), caching=False)
    name_all_blocks = get_request_block_hasher(BLOCK_SIZE, sha256)
    num_blocks = len(name_all_blocks(request))
    return best_cpu_seconds(lambda: name_all_blocks(request)) / num_blocks * 1e6


def _make_request(request_id: str, prompt: list[int], caching: bool):
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    max_tokens = MAX_MODEL_LEN - PROMPT_TOKENS
    return Request(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling_params=SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True),
        pooling_params=None,
        block_hasher=get_request_block_hasher(BLOCK_SIZE, sha256) if caching else None,
    )
