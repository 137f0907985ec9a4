"""The KV cache of a worker: which layers keep what, and the tensors for it.

(vLLM: ``get_kv_cache_spec`` and ``initialize_kv_cache`` in vllm/v1/worker/gpu/model_runner.py)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from minivllm.attention.kv_cache import KVCache
from minivllm.attention.quantized_kv import is_float8, layer_scales
from minivllm.config import CacheConfig
from minivllm.kv.kv_cache_spec import (
    FullAttentionSpec,
    KVCacheGroupSpec,
    KVCacheSpec,
    SlidingWindowSpec,
    layer_places,
)
from minivllm.models.model_config import ModelConfig


def kv_cache_specs(
    config: ModelConfig, cache_config: CacheConfig, prefix: str = "", keeps_all: bool = False
) -> dict[str, KVCacheSpec]:
    """The KVCacheSpec of each layer, by its name in the whole model; none of an encoder's.

    Args:
        config: of the part of the model that a rank has.
        cache_config: size of a block, and form of the numbers in it.
        prefix: before each name.
        keeps_all: layers with a sliding window keep all tokens, too.
    """
    if config.is_encoder_only:
        return {}
    dtype = config.kv_cache_dtype(cache_config.cache_dtype)
    sizes = {
        "block_size": cache_config.block_size,
        "num_kv_heads": config.num_kv_heads,
        "head_size": config.head_dim,
        "bytes_per_number": dtype.itemsize,
        "bytes_per_scale": torch.float32.itemsize if dtype == torch.int8 else 0,
    }
    specs: dict[str, KVCacheSpec] = {}
    for index, window in enumerate(config.sliding_windows, start=config.start_layer):
        name = f"{prefix}model.layers.{index}.self_attn"
        if window is None or keeps_all:
            specs[name] = FullAttentionSpec(**sizes)
        else:
            specs[name] = SlidingWindowSpec(**sizes, sliding_window=window)
    return specs


def make_kv_cache(
    config: ModelConfig,
    cache_config: CacheConfig,
    groups: Sequence[KVCacheGroupSpec],
    num_blocks: int,
    device: torch.device,
    kv_scales: Mapping[str, float],
    draft: KVCache | None = None,
    prefix: str = "",
) -> KVCache:
    """Make the KVCache of a model's layers.

    Args:
        config, cache_config, prefix: as in ``kv_cache_specs``.
        groups: KV cache groups of the whole model.
        num_blocks: the null block included.
        device: where the tensors are.
        kv_scales: of keys and values in float8, by the checkpoint's names.
        draft: the cache of a draft model's layers, behind the same block ids.
    """
    dtype = config.kv_cache_dtype(cache_config.cache_dtype)
    names = kv_cache_specs(config, cache_config, prefix)
    places = layer_places(groups, names)
    scales = layer_scales(kv_scales, len(names), config.start_layer) if is_float8(dtype) else []
    return KVCache(
        len(names),
        num_blocks,
        cache_config.block_size,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        dtype=dtype,
        device=device,
        draft=draft,
        scales=scales,
        places=[place.place for place in places],
        # an encoder's layers keep nothing; a step's rows are those of one group with empty tables
        layer_groups=[place.group for place in places] or [0],
        num_groups=max(1, len(groups)),
    )
