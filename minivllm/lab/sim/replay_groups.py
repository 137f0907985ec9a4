"""Replay of recordings with KV cache groups: what each group holds, and what can be found in it.

A recording whose config has ``groups`` has no ``block_size``: each group has its own.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from minivllm.kv.groups.manager import HybridKVCacheManager
from minivllm.kv.groups.options import (
    check_retention_interval,
    resolve_hash_block_size,
    scheduler_block_size,
)
from minivllm.kv.kv_cache_spec import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec
from minivllm.kv.manager import KVCacheManager
from minivllm.utils.validation import check, is_int

_KINDS = ("full", "sliding")
_MOST = 10**6
_INTERVAL = "prefix_cache_retention_interval"


def make_manager(
    config: dict[str, Any], kv_cache_manager_cls: type[KVCacheManager], num_plans: int
) -> KVCacheManager:
    """Make the KV cache manager of a recording.

    Args:
        config: of the recording.
        kv_cache_manager_cls: one of your own; with groups it is a HybridKVCacheManager.
        num_plans: in flight, at most.
    """
    num_blocks = config["num_gpu_blocks"]
    enable_prefix_caching = config["enable_prefix_caching"]
    if "groups" not in config:
        return kv_cache_manager_cls(num_blocks, config["block_size"], enable_prefix_caching)
    hybrid_cls = HybridKVCacheManager
    if issubclass(kv_cache_manager_cls, HybridKVCacheManager):
        hybrid_cls = kv_cache_manager_cls
    specs = read_groups(config)
    return hybrid_cls(
        num_blocks,
        scheduler_block_size(specs),
        enable_prefix_caching,
        specs=specs,
        max_model_len=config["max_model_len"],
        max_in_flight_tokens=config["max_num_batched_tokens"] * num_plans,
        retention_interval=config.get(_INTERVAL, 0),
        hash_block_size=resolve_hash_block_size(None, specs),
    )


def read_groups(config: dict[str, Any]) -> list[KVCacheSpec]:
    """The specs of a recording's groups. Heads do not count: there are no tensors."""
    heads = {"num_kv_heads": 1, "head_size": 1, "bytes_per_number": 1}
    specs: list[KVCacheSpec] = []
    for group in config["groups"]:
        size = group["block_size"]
        if group["kind"] == "full":
            specs.append(FullAttentionSpec(size, **heads))
        else:
            window = group["sliding_window"]
            specs.append(SlidingWindowSpec(size, **heads, sliding_window=window))
    return specs


def cached_by_group(manager: KVCacheManager) -> dict[str, Any]:
    """Key of a step: number of blocks of each group that can be found."""
    cache = manager.prefix_cache
    if not isinstance(manager, HybridKVCacheManager) or cache is None:
        return {}
    counted = Counter(manager.prefix_cache.group_of(block) for block in cache)
    return {"cached": [counted[group] for group in range(len(manager.managers))]}


def tables_of(
    manager: KVCacheManager, seq_id: str, new_block_ids: tuple[list[int], ...] | None, kind: str
) -> dict[str, Any]:
    """Keys of a scheduled sequence: its block ids, and those of them that the plan carries.

    Args:
        manager: has its tables.
        seq_id: of the sequence.
        new_block_ids: of the plan; None if it has none for this sequence.
        kind: "new", "resumed" or "running".
    """
    if not isinstance(manager, HybridKVCacheManager):
        new_ids = [] if new_block_ids is None else new_block_ids[0]
        return {"block_ids": manager.get_block_ids(seq_id), "new_block_ids": new_ids}
    no_ids: list[list[int]] = [[] for _ in manager.managers]
    keys = {
        "block_ids": manager.get_block_ids(seq_id),
        "new_block_ids": no_ids if new_block_ids is None else list(new_block_ids),
    }
    junction = manager.block_tables[seq_id].junction
    if junction and kind != "running":
        keys["shared_prefix_boundary"] = junction
    return keys


def validate_groups(config: dict[str, Any]) -> None:
    """Raise ``ValueError`` for groups that cannot be, or that this engine does not have."""
    groups = config["groups"]
    ok = isinstance(groups, list) and groups
    check(ok, "config['groups']", groups, "a list of at least one")
    for index, group in enumerate(groups):
        where = f"config['groups'][{index}]"
        check(isinstance(group, dict), where, group, "an object")
        kind = group.get("kind")
        check(kind in _KINDS, f"{where}['kind']", kind, f"one of {', '.join(_KINDS)}")
        sizes = ("block_size",) if kind == "full" else ("block_size", "sliding_window")
        for key in sizes:
            size = group.get(key)
            ok = is_int(size, 1) and size <= _MOST
            check(ok, f"{where}[{key!r}]", size, f"an integer from 1 to {_MOST}")
        window = group.get("sliding_window")
        ok = kind == "sliding" or window is None
        check(ok, f"{where}['sliding_window']", window, "absent of a full group")
    specs = read_groups(config)
    size = scheduler_block_size(specs)
    check(
        size <= _MOST, "config['groups']", groups, f"of block sizes with a multiple up to {_MOST}"
    )
    interval = config.get(_INTERVAL, 0)
    check(interval is None or is_int(interval), f"config[{_INTERVAL!r}]", interval, "an integer")
    check_retention_interval(interval, specs)
    mode = config.get("mode")
    check(mode != "kv", "config['mode']", mode, "absent, or of plans: groups have no connector")
