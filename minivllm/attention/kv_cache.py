"""KVCache: the tensors that block ids index, one of K and one of V per layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from minivllm.attention.quantized_kv import QuantizedKVCache
from minivllm.utils.tensors import make_zeros

LayerKVCache = tuple[torch.Tensor, torch.Tensor] | QuantizedKVCache


class KVCache:
    """K and V of every block, in every layer.

    Args:
        num_layers: attention layers.
        num_blocks: blocks in the pool, the null block included.
        block_size: positions per block.
        num_kv_heads: heads of K and V.
        head_dim: numbers per head.
        dtype: of the numbers; of 8 bits, see ``quantized_kv``.
        device: where they are.
        draft: the layers of a draft model, behind the same block ids.
        scales: of each layer's keys and values in float8; none: 1.
        places: which of a block's pages is each layer's; None: each has one of its own. Layers of
            different KV cache groups may have the same: a block is one group's at a time.
        layer_groups: the KV cache group of each layer; None: there is one group.
        num_groups: KV cache groups of the whole model, of which a stage may have only some.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        draft: KVCache | None = None,
        scales: Sequence[tuple[float, float]] = (),
        places: Sequence[int] | None = None,
        layer_groups: Sequence[int] | None = None,
        num_groups: int = 1,
    ):
        self.draft = draft
        self.layer_groups = [0] * num_layers if layer_groups is None else list(layer_groups)
        self.num_groups = num_groups
        places = range(num_layers) if places is None else places
        num_places = max(places, default=-1) + 1
        shape = (num_places, 2, num_blocks, block_size, num_kv_heads, head_dim)
        # Zeros and not what was there before: nothing that counts is read before it is written, but
        # padding reads the null block, and NaN times a weight of 0 is NaN.
        quantized = dtype.itemsize == 1
        self.data = make_zeros(shape, torch.uint8 if quantized else dtype, device)
        # float32, one per token and head, beside codes of int8
        self.scales = make_zeros(shape[:-1], torch.float32, device) if dtype == torch.int8 else None
        self.layers: list[LayerKVCache] = []
        if not quantized:
            self.layers += [(self.data[place, 0], self.data[place, 1]) for place in places]
            return
        pages = self.data.view(dtype)
        of_layers = scales or [(1.0, 1.0)] * num_layers
        for place, (k_scale, v_scale) in zip(places, of_layers, strict=True):
            self.layers.append(
                QuantizedKVCache(
                    key=pages[place, 0],
                    value=pages[place, 1],
                    k_scale=k_scale,
                    v_scale=v_scale,
                    key_scales=None if self.scales is None else self.scales[place, 0],
                    value_scales=None if self.scales is None else self.scales[place, 1],
                )
            )

    def layer(self, index: int) -> LayerKVCache:
        """K and V of one layer, each ``[num_blocks, block_size, num_kv_heads, head_dim]``."""
        return self.layers[index]

    def touch(self, num_bytes: int) -> None:
        """Touch the first blocks' pages, so that the first prompt does not wait for page faults.

        On a CPU a page comes into being when it is first written.
        """
        num_blocks = num_bytes * self.data.shape[2] // max(self.data.nbytes, 1)
        self.data[:, :, :num_blocks] = 0

    def copy_from(self, other: KVCache, src: list[int], dst: list[int]) -> None:
        """Copy whole blocks from another storage, in every layer: device to host or back."""
        self.data[:, :, dst] = other.data[:, :, src].to(self.data.device)
        if self.scales is not None and other.scales is not None:
            self.scales[:, :, dst] = other.scales[:, :, src].to(self.data.device)
        if self.draft is not None and other.draft is not None:
            self.draft.copy_from(other.draft, src, dst)
