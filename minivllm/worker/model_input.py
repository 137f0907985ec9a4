"""ModelInput: a step's flat batch in plain lists, before it becomes tensors.

(vLLM: the CPU side of ``CommonAttentionMetadata``; 0.6.6: ModelInputForGPU)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from minivllm.attention.metadata import AttentionMetadata
from minivllm.kv.block_table import slots_of
from minivllm.utils.tensors import make_tensor


@dataclass
class GroupInput:
    """Where the K and V of a step's flat batch are, in one KV cache group."""

    slots: list[int] = field(default_factory=list)  # where each token's go
    block_tables: list[list[int]] = field(default_factory=list)  # of each sequence


@dataclass
class ModelInput:
    """A step's flat batch: the first two lists are per token, the next two per sequence."""

    token_ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    query_lens: list[int] = field(default_factory=list)  # how many tokens are computed
    seq_lens: list[int] = field(default_factory=list)  # and how many there are then
    groups: list[GroupInput] = field(default_factory=lambda: [GroupInput()])  # KV cache groups

    def add(
        self, token_ids: list[int], start: int, block_ids: Sequence[list[int]], block_size: int
    ) -> None:
        """Add a sequence that computes these tokens, from position ``start`` on.

        Args:
            token_ids: what it computes.
            start: the position of the first one.
            block_ids: of its table in each group.
            block_size: positions per block.
        """
        stop = start + len(token_ids)
        self.token_ids += token_ids
        self.positions += range(start, stop)
        self.query_lens.append(stop - start)
        self.seq_lens.append(stop)
        for group, table in zip(self.groups, block_ids, strict=True):
            group.block_tables.append(table)
            if table:  # else no K and V are kept
                group.slots += slots_of(table, start, stop, block_size)

    def pad(self, num_seqs: int) -> None:
        """Pad a batch of decodes with sequences of one token in the null block."""
        missing = num_seqs - len(self.query_lens)
        self.token_ids += [0] * missing
        self.positions += [0] * missing
        self.query_lens += [1] * missing
        self.seq_lens += [1] * missing
        for group in self.groups:
            group.slots += [0] * missing
            group.block_tables += [[0]] * missing

    def to_tensors(
        self, device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor, list[AttentionMetadata]]:
        """Make token ids and positions, int64 ``[num_tokens]``, and each group's metadata."""
        token_ids = make_tensor(self.token_ids, "int64", device)
        positions = make_tensor(self.positions, "int64", device)
        first, *others = self.groups
        metadata = AttentionMetadata.build(
            self.query_lens,
            self.seq_lens,
            block_tables=first.block_tables,
            slot_mapping=first.slots,
            device=device,
        )
        of_others = [metadata.with_blocks(g.block_tables, g.slots) for g in others]
        return token_ids, positions, [metadata, *of_others]
