"""Options of prefix caching with groups: which of them fit the groups of a model.

(vLLM: ``_validate_prefix_cache_retention_interval`` in vllm/v1/core/kv_cache_coordinator.py, and
``resolve_kv_cache_block_sizes`` in vllm/v1/core/kv_cache_utils.py)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import gcd, lcm

from minivllm.kv.kv_cache_spec import KVCacheSpec, SlidingWindowSpec


def scheduler_block_size(specs: Sequence[KVCacheSpec]) -> int:
    """Tokens of which the length of a hit is a multiple: full blocks in every group."""
    return reduce(lcm, (spec.block_size for spec in specs), 1)


def largest_hash_block_size(specs: Sequence[KVCacheSpec]) -> int:
    """Tokens of the longest piece of which the blocks of every group are made."""
    return reduce(gcd, (spec.block_size for spec in specs), 0)


def check_retention_interval(retention_interval: int | None, specs: Sequence[KVCacheSpec]) -> None:
    """Raise ``ValueError`` for an interval that has no effect, or at which no hit can end."""
    if retention_interval is None:
        return
    if not any(isinstance(spec, SlidingWindowSpec) for spec in specs):
        if retention_interval != 0:
            raise ValueError(
                "prefix_cache_retention_interval is set but this model has no sliding-window or "
                "Mamba KV cache group, so retention has no effect. Set it to 0 (it only applies to "
                "sliding-window and Mamba attention)."
            )
        return
    size = scheduler_block_size(specs)
    if retention_interval < 0 or retention_interval % size != 0:
        raise ValueError(
            f"prefix_cache_retention_interval ({retention_interval}) must be non-negative and a "
            f"multiple of scheduler_block_size ({size})."
        )


def resolve_hash_block_size(prefix_match_unit: int | None, specs: Sequence[KVCacheSpec]) -> int:
    """Size of the pieces in which tokens are hashed.

    Args:
        prefix_match_unit: as a user asks for; None: the largest that fits all groups.
        specs: of the groups.

    Raises:
        ValueError: unless the blocks of each group are several pieces, or one, long.
    """
    sizes = [spec.block_size for spec in specs]
    size = prefix_match_unit or largest_hash_block_size(specs)
    if len(sizes) == 1 and size != sizes[0]:
        raise ValueError(
            f"Invalid prefix_match_unit={size}; with a single KV cache group, prefix-cache hits "
            f"land on the block size ({sizes[0]}). Unset it or set it to {sizes[0]}."
        )
    if any(block_size % size for block_size in sizes):
        raise ValueError(
            f"Invalid prefix_match_unit={size}; prefix-cacheable KV cache group block sizes must "
            f"be divisible by prefix_match_unit. Got group block sizes={sizes}, "
            f"prefix-cacheable={sizes}."
        )
    return size
