"""LoRAMetadata: the rows of a step's flat batch, sorted by the slot of their adapter.

So each adapter that is present multiplies one block of rows, whatever their order in the batch.
(vLLM: LoRAKernelMeta, vllm/lora/ops/triton_ops/lora_kernel_metadata.py)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from minivllm.utils.tensors import make_tensor

TILE_ROWS = 16  # the fewest that a product on tensor cores has


@dataclass(frozen=True, eq=False)
class LoRAMetadata:
    """Rows with an adapter, those of one slot side by side; rows without one are not in it.

    Slot ``slots[i]`` has the rows ``rows[starts[i] : starts[i + 1]]`` of the flat batch.
    """

    rows: torch.Tensor  # int64 [n]
    starts: np.ndarray  # int64 [num_slots + 1]
    slots: np.ndarray  # int64 [num_slots], ascending

    @classmethod
    def build(
        cls, slots: Sequence[int], query_lens: Sequence[int], device: torch.device
    ) -> LoRAMetadata | None:
        """Sort the rows of a flat batch.

        Args:
            slots: of each sequence, in the order of the batch; -1 for none.
            query_lens: how many rows each has.
            device: where the row numbers are used.

        Returns:
            None if no row has an adapter.
        """
        if max(slots, default=-1) < 0:
            return None
        slot_of_row = np.repeat(slots, query_lens)
        order = np.argsort(slot_of_row, kind="stable")
        order = order[np.count_nonzero(slot_of_row < 0) :]  # those without come first
        present, counts = np.unique(slot_of_row[order], return_counts=True)
        starts = np.append(0, np.cumsum(counts))
        return cls(torch.from_numpy(order).to(device), starts, present)

    @cached_property
    def tiles(self) -> torch.Tensor:
        """Tiles of at most ``TILE_ROWS`` rows of one slot, for kernels: int32 ``[num_tiles, 3]``.

        Each is a slot, and a begin and an end in ``rows``.
        """
        tiles = [
            (slot, first, min(first + TILE_ROWS, end))
            for slot, begin, end in zip(self.slots, self.starts, self.starts[1:], strict=False)
            for first in range(begin, end, TILE_ROWS)
        ]
        return make_tensor(tiles, "int32", self.rows.device)
