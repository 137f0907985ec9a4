"""KVCacheConfig: number of blocks of the KV cache, from the bytes that it may fill.

(vLLM: ``get_kv_cache_configs`` and ``check_enough_kv_cache_memory`` in
vllm/v1/core/kv_cache_utils.py)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minivllm.config import CacheConfig, SchedulerConfig
from minivllm.kv.kv_cache_spec import (
    KVCacheGroupSpec,
    KVCacheSpec,
    bytes_per_block,
    get_kv_cache_groups,
)
from minivllm.kv.memory_profile import format_bytes, host_memory_gib
from minivllm.utils.math_utils import cdiv


@dataclass(frozen=True)
class KVCacheConfig:
    """Sizes of the two pools of blocks, device and host, and what a block holds.

    Block 0 of each pool is the null block.
    """

    num_blocks: int  # on the device
    num_host_blocks: int  # in host memory, for requests that are swapped out
    groups: tuple[KVCacheGroupSpec, ...]  # of layers that share block tables; none of an encoder's


def get_kv_cache_config(
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    kv_cache_specs: Sequence[Mapping[str, KVCacheSpec]],
    available_memory: Sequence[int],
    on_cpu: bool,
    num_machines: float = 1,
) -> KVCacheConfig:
    """Compute the number of device and host blocks: as many as every rank has memory for.

    Args:
        cache, scheduler: the limits.
        kv_cache_specs: of each rank's layers, by name; none of a model that keeps no K and V.
        available_memory: bytes that each rank's KV cache may have, if no size was stated.
        on_cpu: the knob to turn has another name there.
        num_machines: those that the ranks are on, each with this one's memory; half a one, if two
            engines share it.

    Raises:
        ValueError: if they cannot hold one sequence of full length, or are more than there is.
    """
    groups = get_kv_cache_groups(kv_cache_specs)
    if not groups:  # a model that keeps no K and V
        return KVCacheConfig(num_blocks=2, num_host_blocks=0, groups=groups)
    block_bytes = [bytes_per_block(groups, specs) for specs in kv_cache_specs]
    knob = "MINIVLLM_CPU_KVCACHE_SPACE" if on_cpu else "gpu_memory_utilization"
    max_model_len = scheduler.max_model_len
    num_blocks = cache.num_gpu_blocks_override or min(
        (cache.kv_cache_memory_bytes or available) // size
        for available, size in zip(available_memory, block_bytes, strict=True)
    )
    capacity = max(0, num_blocks - 1) * cache.block_size
    # A last token that was sampled is never in the cache, but a draft model may write there.
    ends = 0 if scheduler.num_lookahead_tokens else scheduler.num_sampled_tokens_per_step
    if capacity < max_model_len - ends:
        or_less = f", or lower max_model_len to {capacity + ends} or less" if capacity else ""
        raise ValueError(
            f"the KV cache holds {capacity} tokens ({max(0, num_blocks - 1)} usable blocks of "
            f"{cache.block_size}), less than one sequence of max_model_len={max_model_len}; "
            f"raise num_gpu_blocks_override, kv_cache_memory_bytes or {knob}{or_less}."
        )
    room = host_memory_gib() * 2**30
    total = int(num_blocks * sum(block_bytes) / num_machines)  # of each machine
    if on_cpu and total > room:
        raise ValueError(
            f"the KV cache would take {format_bytes(total)}, but this machine "
            f"has {format_bytes(room)}; lower num_gpu_blocks_override, kv_cache_memory_bytes or "
            f"{knob}."
        )
    # More host blocks than all running sequences could fill are of no use to anyone.
    most = scheduler.max_num_seqs * cdiv(max_model_len, cache.block_size)
    num_host_blocks = min(cache.swap_space_bytes // max(block_bytes), most)
    return KVCacheConfig(num_blocks, num_host_blocks, groups)
