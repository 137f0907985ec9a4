"""KVCacheConfig: number of blocks of the KV cache, from the bytes that it may fill.

(vLLM: ``get_kv_cache_configs`` and ``check_enough_kv_cache_memory`` in
vllm/v1/core/kv_cache_utils.py)
"""

from __future__ import annotations

from bisect import bisect_right
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


@dataclass(frozen=True)
class KVCacheConfig:
    """Sizes of the two pools of blocks, device and host, and what a block holds.

    Block 0 of each pool is the null block.
    """

    num_blocks: int  # on the device
    num_host_blocks: int  # in host memory, for requests that are swapped out
    groups: tuple[KVCacheGroupSpec, ...]  # of layers that share block tables; none of an encoder's

    def max_concurrency(self, max_model_len: int, max_in_flight_tokens: int) -> float:
        """Number of the longest requests whose blocks fit beside each other.

        Args:
            max_model_len: the longest sequence.
            max_in_flight_tokens: those that all plans in flight compute, at most.
        """
        return (self.num_blocks - 1) / sum(
            max_blocks_by_group(self.groups, max_model_len, max_in_flight_tokens)
        )


def max_blocks_by_group(
    groups: Sequence[KVCacheGroupSpec], max_model_len: int, max_in_flight_tokens: int
) -> list[int]:
    """Number of blocks that one sequence holds at most, in each group."""
    return [g.kv_cache_spec.max_blocks(max_model_len, max_in_flight_tokens) for g in groups]


def get_kv_cache_config(
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    kv_cache_specs: Sequence[Mapping[str, KVCacheSpec]],
    available_memory: Sequence[int],
    on_cpu: bool,
    num_machines: float = 1,
    num_plans: int = 1,
) -> KVCacheConfig:
    """Compute the number of device and host blocks: as many as every rank has memory for.

    Args:
        cache, scheduler: the limits.
        kv_cache_specs: of each rank's layers, by name; none of a model that keeps no K and V.
        available_memory: bytes that each rank's KV cache may have, if no size was stated.
        on_cpu: the knob to turn has another name there.
        num_machines: those that the ranks are on, each with this one's memory; half a one, if two
            engines share it.
        num_plans: in flight, at most.

    Raises:
        ValueError: if they cannot hold one sequence of full length, or are more than there is; if
            groups have blocks of different sizes.
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
    _check_block_sizes(groups)
    in_flight = num_plans * scheduler.max_num_batched_tokens
    # A last token that was sampled is never in the cache, but a draft model may write there.
    ends = 0 if scheduler.num_lookahead_tokens else scheduler.num_sampled_tokens_per_step
    usable = max(0, num_blocks - 1)
    needed = max_blocks_by_group(groups, max_model_len - ends, in_flight)
    if sum(needed) > usable:
        fitting = bisect_right(
            range(max_model_len),
            usable,
            key=lambda tokens: sum(max_blocks_by_group(groups, tokens, in_flight)),
        )
        longest = fitting - 1 + ends  # the first of the range is no token
        or_less = f", or lower max_model_len to {longest} or less" if fitting > 1 else ""
        lacks = f"holds {usable * cache.block_size} tokens ({usable} usable blocks of "
        lacks += f"{cache.block_size}), less than one sequence of max_model_len={max_model_len}"
        if len(groups) > 1 or not groups[0].is_full:
            by_group = " + ".join(map(str, needed))
            lacks = f"has {usable} usable blocks of {cache.block_size} tokens, but one sequence of "
            lacks += f"max_model_len={max_model_len} takes {sum(needed)}: {by_group} in its groups "
            lacks += "of layers"
        raise ValueError(
            f"the KV cache {lacks}; raise num_gpu_blocks_override, kv_cache_memory_bytes or "
            f"{knob}{or_less}."
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
    most = scheduler.max_num_seqs * sum(max_blocks_by_group(groups, max_model_len, in_flight))
    num_host_blocks = min(cache.swap_space_bytes // max(block_bytes), most)
    return KVCacheConfig(num_blocks, num_host_blocks, groups)


def _check_block_sizes(groups: Sequence[KVCacheGroupSpec]) -> None:
    """Raise ``ValueError`` unless blocks have equally many positions in all groups."""
    specs = [group.kv_cache_spec for group in groups]
    sizes = [spec.block_size for spec in specs]
    if len(set(sizes)) > 1 or any(spec.page_size_padded for spec in specs):
        raise ValueError(
            "the model's layers keep K and V of different sizes, so that blocks would have "
            f"{sizes} positions or be padded; here the tensors of all layers are alike, and such a "
            "model is not served."
        )
