"""ModelInput: a step's flat batch in plain lists, before it becomes tensors.

(vLLM: the CPU side of ``CommonAttentionMetadata``; 0.6.6: ModelInputForGPU)
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from minivllm.attention.metadata import AttentionMetadata
from minivllm.kv.block_table import slots_of
from minivllm.utils.tensors import make_tensor


@dataclass
class ModelInput:
    """A step's flat batch: the first three lists are per token, the others per sequence."""

    token_ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)  # where each token's K and V go
    query_lens: list[int] = field(default_factory=list)  # how many tokens are computed
    seq_lens: list[int] = field(default_factory=list)  # and how many there are then
    block_tables: list[list[int]] = field(default_factory=list)

    def add(self, token_ids: list[int], start: int, block_ids: list[int], block_size: int) -> None:
        """Add a sequence that computes these tokens, from position ``start`` on."""
        stop = start + len(token_ids)
        self.token_ids += token_ids
        self.positions += range(start, stop)
        if block_ids:  # else no K and V are kept
            self.slots += slots_of(block_ids, start, stop, block_size)
        self.query_lens.append(stop - start)
        self.seq_lens.append(stop)
        self.block_tables.append(block_ids)

    def pad(self, num_seqs: int) -> None:
        """Pad a batch of decodes with sequences of one token in the null block."""
        missing = num_seqs - len(self.query_lens)
        for numbers in (self.token_ids, self.positions, self.slots):
            numbers += [0] * missing
        for lengths in (self.query_lens, self.seq_lens):
            lengths += [1] * missing
        self.block_tables += [[0]] * missing

    def to_tensors(
        self, device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor, AttentionMetadata]:
        """Make token ids and positions, int64 ``[num_tokens]``, and the AttentionMetadata."""
        metadata = AttentionMetadata.build(
            self.query_lens, self.seq_lens, self.block_tables, self.slots, device
        )
        token_ids = make_tensor(self.token_ids, "int64", device)
        return token_ids, make_tensor(self.positions, "int64", device), metadata
