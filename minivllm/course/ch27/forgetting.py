"""The embedded model with windows in some of its layers: what it still reads, what it holds."""

from __future__ import annotations

from minivllm.course.asking.texts import read_toml
from minivllm.kv.kv_cache_spec import (
    FullAttentionSpec,
    KVCacheGroupSpec,
    KVCacheSpec,
    SlidingWindowSpec,
    bytes_per_block,
    get_kv_cache_groups,
)
from minivllm.utils.math_utils import cdiv

NUM_LAYERS = 5
BLOCK_SIZE = 16
SHAPE = {
    "block_size": BLOCK_SIZE,
    "num_kv_heads": 4,
    "head_size": 64,
    "bytes_per_number": 4,
}


def forgetting() -> dict[tuple[int, tuple[int, ...]], float]:
    """Share of tables that are read, by window and the layers that have it.

    Measured, see ``forgetting.toml``. Of the choices with layer 3 there is only the one of it
    alone: no window there reads many tables.
    """
    measured = read_toml("ch27/forgetting.toml")
    return {
        (int(window), tuple(map(int, layers))): right / measured["cases"]
        for window, rows in measured["right"].items()
        for layers, right in rows.items()
    }


def groups_of(
    window: int, layers: tuple[int, ...]
) -> tuple[tuple[KVCacheGroupSpec, ...], dict[str, KVCacheSpec]]:
    """Groups of the embedded model if these layers have a window, and its layers' specs."""
    specs: dict[str, KVCacheSpec] = {}
    for i in range(NUM_LAYERS):
        spec: KVCacheSpec = FullAttentionSpec(**SHAPE)
        if i in layers:
            spec = SlidingWindowSpec(**SHAPE, sliding_window=window)
        specs[f"layer {i}"] = spec
    return get_kv_cache_groups([specs]), specs


def bytes_held(num_tokens: int, window: int, layers: tuple[int, ...]) -> int:
    """Bytes of K and V of one decoding chat, if these layers have a window."""
    groups, specs = groups_of(window, layers)
    whole = cdiv(num_tokens, BLOCK_SIZE)
    blocks = [min(whole, group.kv_cache_spec.max_blocks(num_tokens, 0)) for group in groups]
    return sum(blocks) * bytes_per_block(groups, specs)
