"""LoRALinearMethod: a linear layer; rows with an adapter add its low-rank product.

``y = x W^T + s (x A^T) B^T``: A shrinks a row to as many numbers as the adapter's rank, B expands
these to the layer's outputs. The scale s is in B already. (vLLM: vllm/lora/layers/, punica_base.py)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec

import numpy as np
import torch

from minivllm.lora.metadata import LoRAMetadata
from minivllm.models.linear import Linear, LinearMethod

RANK_STEP = 16  # slots have room for a multiple: a vector of the processor, or a tensor core's tile
Part = tuple[torch.Tensor, torch.Tensor]  # A [rank, in] and B [out of the part, rank]


class Rows:
    """Rows of the step that is computed; all layers of a model have the same."""

    metadata: LoRAMetadata | None = None  # None: no row has an adapter
    slots: Sequence[int] = ()  # of each sequence; -1: the base model


class LoRALinearMethod(LinearMethod):
    """A method around another: the base's product, and the adapters of some rows added to it.

    Args:
        base: of the layer's own weight.
        layer: whose product it is.
        parts: of a fused layer, the name and width of each; of another one its own.
        max_loras: number of slots.
        max_rank: for which each slot has room.
        dtype: of the adapters.
        rows: which rows of the step have which slot.
    """

    def __init__(
        self,
        base: LinearMethod,
        layer: Linear,
        parts: dict[str, int],
        max_loras: int,
        max_rank: int,
        dtype: torch.dtype,
        rows: Rows,
    ):
        self.base = base
        self.parts = parts
        self.rows = rows
        self.max_rank = -(-max_rank // RANK_STEP) * RANK_STEP
        device = next(layer.parameters()).device
        # both transposed, so that products read them row by row: a[slot, :, part, :rank]
        shape = (max_loras, layer.input_size, len(parts) * self.max_rank)
        self.a = torch.zeros(shape, dtype=dtype, device=device)
        self.b = torch.zeros(
            max_loras, self.max_rank, layer.output_size, dtype=dtype, device=device
        )
        # by slot; 0: the adapter there leaves the layer as it is
        self.ranks = np.zeros(max_loras, np.int64)
        self.has_kernels = device.type == "cuda" and find_spec("triton") is not None

    @property
    def nbytes(self) -> int:
        return self.a.nbytes + self.b.nbytes

    def create_weights(self, layer: Linear) -> None:
        """No-op: the base has created them."""

    def apply(self, layer: Linear, x: torch.Tensor) -> torch.Tensor:
        y = self.base.apply(layer, x)
        if self.rows.metadata is not None:
            add = self.add_in_kernels if self.has_kernels else self.add_adapters
            add(y, x, self.rows.metadata)
        return y

    def set_slot(self, slot: int, weights: Mapping[str, Part]) -> None:
        """Copy an adapter's matrices of this layer into a slot; parts that it lacks are zero."""
        self.a[slot] = 0
        self.b[slot] = 0
        begin = 0
        for number, (name, width) in enumerate(self.parts.items()):
            if name in weights:
                a, b = weights[name]
                first = number * self.max_rank
                self.a[slot, :, first : first + len(a)] = a.T
                self.b[slot, : len(a), begin : begin + width] = b.T
            begin += width
        self.ranks[slot] = max((len(a) for a, _ in weights.values()), default=0)

    def add_adapters(self, y: torch.Tensor, x: torch.Tensor, metadata: LoRAMetadata) -> None:
        """Add the adapters' products to those of their rows: one shrink and one expand for each.

        Args:
            y: ``[num_tokens, output_size]``, changed in place.
            x: ``[num_tokens, input_size]``.
            metadata: which rows have which slot.
        """
        for i, slot in enumerate(metadata.slots):
            if rank := self.ranks[slot]:
                rows = metadata.rows[metadata.starts[i] : metadata.starts[i + 1]]
                shrunk = x[rows].float() @ self.a[slot].float()
                begin = 0
                for number, width in enumerate(self.parts.values()):
                    first = number * self.max_rank
                    some = shrunk[:, first : first + rank]
                    b = self.b[slot, :rank, begin : begin + width].float()
                    y[:, begin : begin + width].index_add_(0, rows, (some @ b).to(y.dtype))
                    begin += width

    def add_in_kernels(self, y: torch.Tensor, x: torch.Tensor, metadata: LoRAMetadata) -> None:
        """Do what ``add_adapters`` does, for all adapters at once in Triton's kernels."""
        from minivllm.lora.kernels import lora_expand, lora_shrink

        shrunk = lora_shrink(x, self.a, metadata)
        lora_expand(y, shrunk, self.b, tuple(self.parts.values()), metadata)
