"""QuantizedKVCache: K and V of one layer in 8 bits, and what scales them back (notebook 19).

Two forms. In e4m3 and e5m2 a tensor has one scale, known before: a key's numbers are divided by it
when they are written, and what is read of them is multiplied once, in the softmax's scale and in
the output. In int8 every token and head has a scale of its own, its largest number / 127, found
when it is written; it multiplies that key's score, or that value's weight. (vLLM:
vllm/v1/attention/backends/triton_attn.py, ``kv_cache_dtype``)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import torch

LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}  # finite numbers
_LEAST_SCALE = 1e-6  # of a token and head whose numbers are all 0


class QuantizedKVCache(NamedTuple):
    """K and V of one layer, ``[num_blocks, block_size, num_kv_heads, head_dim]`` each.

    Their dtype is float8_e4m3fn, float8_e5m2 or int8.
    """

    key: torch.Tensor
    value: torch.Tensor
    k_scale: float = 1.0  # of all keys
    v_scale: float = 1.0
    key_scales: torch.Tensor | None = None  # float32 [num_blocks, block_size, num_kv_heads]
    value_scales: torch.Tensor | None = None

    def write(self, key: torch.Tensor, value: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        """Put each token's K and V, ``[num_tokens, num_kv_heads, head_dim]``, where its slot is."""
        parts = (
            (key, self.key, self.k_scale, self.key_scales),
            (value, self.value, self.v_scale, self.value_scales),
        )
        for numbers, cache, scale, scales in parts:
            if scales is None:
                codes = to_float8(numbers.float() / scale, cache.dtype)
            else:
                codes, found = to_int8(numbers.float())
                scales.flatten(0, 1).index_copy_(0, slot_mapping, found)
            # torch copies rows of no float8, but bytes are bytes
            rows = cache.view(torch.uint8).flatten(0, 1)
            rows.index_copy_(0, slot_mapping, codes.view(torch.uint8))

    def widen(
        self, block_ids: torch.Tensor, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of some blocks, int64 ``[n]``, in a wider dtype: ``[n, block_size, ...]`` each.

        Scales of all keys or values are not in them; those of single tokens are.
        """
        wide = []
        for cache, scales in ((self.key, self.key_scales), (self.value, self.value_scales)):
            numbers = cache.view(torch.uint8).index_select(0, block_ids).view(cache.dtype).float()
            if scales is not None:
                numbers *= scales.index_select(0, block_ids).unsqueeze(-1)
            wide.append(numbers.to(dtype))
        return wide[0], wide[1]


def to_float8(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round to the nearest number of 8 bits; those beyond the largest become the largest."""
    return numbers.clamp(-LARGEST[dtype], LARGEST[dtype]).to(dtype)


def to_int8(numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round each ``[..., head_dim]`` to int8 by a scale of its own: codes, scales ``[...]``."""
    scales = (numbers.abs().amax(-1) / 127).clamp(min=_LEAST_SCALE)
    return (numbers / scales.unsqueeze(-1)).round().to(torch.int8), scales


def is_float8(dtype: torch.dtype) -> bool:
    """True for dtypes whose scales are known before: a checkpoint may have them."""
    return dtype in LARGEST


def layer_scales(
    found: Mapping[str, float], num_layers: int, start_layer: int = 0
) -> list[tuple[float, float]]:
    """Scales of each layer's keys and values; 1 where a checkpoint has none.

    Keys' scale is that of values, too, if the layer has no other.

    Args:
        found: by tensor names that end in ``k_scale``, ``v_scale`` or, for both, ``kv_scale``.
        num_layers: how many layers there are.
        start_layer: number of the first one.

    Raises:
        ValueError: if a layer has a scale for its values alone.
    """
    layers: list[dict[str, float]] = [{} for _ in range(num_layers)]
    for name, scale in found.items():
        layer = re.search(r"\.(\d+)\.", name)
        index = -1 if layer is None else int(layer[1]) - start_layer
        if 0 <= index < num_layers:
            layers[index][name.rpartition(".")[2]] = scale
    return [_scales_of(start_layer + i, scales) for i, scales in enumerate(layers)]


def _scales_of(layer: int, scales: Mapping[str, float]) -> tuple[float, float]:
    k_scale = scales.get("k_scale", scales.get("kv_scale"))
    v_scale = scales.get("v_scale", k_scale)
    if v_scale is None:
        return 1.0, 1.0
    if k_scale is None:
        raise ValueError(
            f"layer {layer} of the checkpoint has the v_scale {v_scale}, but no k_scale; keys need "
            "one, too."
        )
    return k_scale, v_scale
