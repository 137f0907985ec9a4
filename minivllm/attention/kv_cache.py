"""KVCache: the tensors that block ids index, one of K and one of V per layer."""

from __future__ import annotations

import torch

from minivllm.utils.tensors import make_zeros


class KVCache:
    """K and V of every block, in every layer.

    Args:
        num_layers: attention layers.
        num_blocks: blocks in the pool, the null block included.
        block_size: positions per block.
        num_kv_heads: heads of K and V.
        head_dim: numbers per head.
        draft: the layers of a draft model, behind the same block ids.
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
    ):
        self.draft = draft
        shape = (num_layers, 2, num_blocks, block_size, num_kv_heads, head_dim)
        # Zeros and not what was there before: nothing that counts is read before it is written, but
        # padding reads the null block, and NaN times a weight of 0 is NaN.
        self.data = make_zeros(shape, dtype, device)
        self._layers = [(layer[0], layer[1]) for layer in self.data]

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of one layer, each ``[num_blocks, block_size, num_kv_heads, head_dim]``."""
        return self._layers[index]

    def touch(self, num_bytes: int) -> None:
        """Have memory behind the blocks that are handed out first, before any step needs it.

        On a CPU a page comes into being when it is first written, which a prompt would wait for.
        """
        num_blocks = num_bytes * self.data.shape[2] // max(self.data.nbytes, 1)
        self.data[:, :, :num_blocks] = 0

    def copy_from(self, other: KVCache, src: list[int], dst: list[int]) -> None:
        """Copy whole blocks from another storage, in every layer: device to host or back."""
        self.data[:, :, dst] = other.data[:, :, src].to(self.data.device)
        if self.draft is not None and other.draft is not None:
            self.draft.copy_from(other.draft, src, dst)
