"""ModelInput: a step's flat batch in plain lists, before it becomes tensors.

(vLLM: the CPU side of ``CommonAttentionMetadata``; 0.6.6: ModelInputForGPU)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from minivllm.attention.metadata import AttentionMetadata
from minivllm.kv.block_table import BlockIds, slots_of
from minivllm.utils.tensors import make_tensor

# token ids and positions, int64 [num_tokens], and the metadata of each KV cache group
BatchTensors = tuple[torch.Tensor, torch.Tensor, list[AttentionMetadata]]


@dataclass
class ModelInput:
    """A step's flat batch. By default there is one KV cache group."""

    token_ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)  # of each token, as are the ids
    query_lens: list[int] = field(default_factory=list)  # how many tokens each sequence computes
    seq_lens: list[int] = field(default_factory=list)  # and how many it has then
    # of each group: where each token's K and V go, and the block table of each sequence
    slots: list[list[int]] = field(default_factory=lambda: [[]])
    block_tables: list[list[list[int]]] = field(default_factory=lambda: [[]])

    def add(
        self,
        token_ids: list[int],
        start: int,
        block_ids: BlockIds,
        block_size: int,
        positions: Iterable[int] | None = None,
    ) -> None:
        """Add a sequence that computes these tokens, from place ``start`` on.

        Args:
            token_ids: what it computes.
            start: the place of the first one, from which its slot follows.
            block_ids: of its table in each group.
            block_size: places per block.
            positions: that the model is told; None: the places.
        """
        stop = start + len(token_ids)
        self.token_ids += token_ids
        self.positions += range(start, stop) if positions is None else positions
        self.query_lens.append(stop - start)
        self.seq_lens.append(stop)
        for table, tables, slots in zip(block_ids, self.block_tables, self.slots, strict=True):
            tables.append(table)
            if table:  # an encoder's is empty: it keeps no K and V
                slots += slots_of(table, start, stop, block_size)

    def pad(self, num_seqs: int) -> None:
        """Pad a batch of decodes with sequences of one token in the null block."""
        missing = num_seqs - len(self.query_lens)
        for numbers in (self.token_ids, self.positions, *self.slots):
            numbers += [0] * missing
        for lengths in (self.query_lens, self.seq_lens):
            lengths += [1] * missing
        for tables in self.block_tables:
            tables += [[0]] * missing

    def to_tensors(self, device: torch.device) -> BatchTensors:
        """Make token ids and positions, int64 ``[num_tokens]``, and each group's metadata."""
        token_ids = make_tensor(self.token_ids, "int64", device)
        positions = make_tensor(self.positions, "int64", device)
        first = AttentionMetadata.build(
            self.query_lens, self.seq_lens, self.block_tables[0], self.slots[0], device
        )
        # other groups have the same sequences and rows, in blocks of their own
        others = zip(self.block_tables[1:], self.slots[1:], strict=True)
        metadata = [first, *(first.with_blocks(tables, slots) for tables, slots in others)]
        return token_ids, positions, metadata
