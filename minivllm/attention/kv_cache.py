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
    ):
        self.draft = draft
        shape = (num_layers, 2, num_blocks, block_size, num_kv_heads, head_dim)
        # Zeros and not what was there before: nothing that counts is read before it is written, but
        # padding reads the null block, and NaN times a weight of 0 is NaN.
        quantized = dtype.itemsize == 1
        self.data = make_zeros(shape, torch.uint8 if quantized else dtype, device)
        # float32, one per token and head, beside codes of int8
        self.scales = make_zeros(shape[:-1], torch.float32, device) if dtype == torch.int8 else None
        self._layers: list[LayerKVCache] = [(layer[0], layer[1]) for layer in self.data]
        if quantized:
            layers = self.data.view(dtype)
            of_layers = scales or [(1.0, 1.0)] * num_layers
            of_tokens = [(None, None)] * num_layers if self.scales is None else self.scales
            self._layers = [
                QuantizedKVCache(layer[0], layer[1], *of_layer, of_token[0], of_token[1])
                for layer, of_layer, of_token in zip(layers, of_layers, of_tokens, strict=True)
            ]

    def layer(self, index: int) -> LayerKVCache:
        """K and V of one layer, each ``[num_blocks, block_size, num_kv_heads, head_dim]``."""
        return self._layers[index]

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
