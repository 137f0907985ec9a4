"""AttentionMetadata: how a flat batch is cut into sequences, and where their K and V are.

Worked example, block size 4. Sequence A (9 tokens known, 8 computed) decodes one token; sequence B
(6 tokens, none computed) prefills a chunk of 5. The flat batch has 6 tokens::

    token            A8   B0  B1  B2  B3  B4
    positions         8    0   1   2   3   4
    query_start_loc   0    1                   6     A is rows 0..0, B is rows 1..5
    seq_lens          9    5                         what each may attend to, itself included
    block_table      [[7, 2, 5],                     A's position 8 is in physical block 5,
                      [3, 9, 0]]                     B needs two blocks; 0 pads
    slot_mapping     20   12  13  14  15  36         5*4+0;  3*4+0 .. 3*4+3, 9*4+0
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, TypeVar

import torch

from minivllm.utils.tensors import make_tensor

R = TypeVar("R")


@dataclass(frozen=True, eq=False)
class AttentionMetadata:
    """Layout of a step's flat batch: built by the model runner, read by every attention layer.

    (vLLM 0.32: CommonAttentionMetadata, vllm/v1/attention/backend.py)
    """

    query_start_loc: torch.Tensor  # int32 [num_seqs + 1]: rows of sequence i are loc[i]:loc[i+1]
    seq_lens: torch.Tensor  # int32 [num_seqs]: computed tokens, this step's included
    block_table: torch.Tensor  # int32 [num_seqs, max_blocks]: physical block ids, padded with 0
    slot_mapping: torch.Tensor  # int64 [num_tokens]: the slot that each token's K and V go to
    max_query_len: int  # the most rows that one sequence has; known here, where it costs nothing
    max_seq_len: int  # and the most tokens
    # What layers have computed from it, for the others: see ``once_per_step``.
    computed: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def build(
        cls,
        query_lens: list[int],
        seq_lens: list[int],
        block_tables: list[list[int]],
        slot_mapping: list[int],
        device: torch.device,
    ) -> AttentionMetadata:
        """From plain lists: one query length, sequence length and block table per sequence."""
        query_start_loc = [0]
        for n in query_lens:
            query_start_loc.append(query_start_loc[-1] + n)
        return cls(
            query_start_loc=make_tensor(query_start_loc, "int32", device),
            seq_lens=make_tensor(seq_lens, "int32", device),
            block_table=make_tensor(_padded(block_tables), "int32", device),
            slot_mapping=make_tensor(slot_mapping, "int64", device),
            max_query_len=max(query_lens),
            max_seq_len=max(seq_lens),
        )

    def with_blocks(
        self, block_tables: list[list[int]], slot_mapping: list[int]
    ) -> AttentionMetadata:
        """Make the metadata of another KV cache group: the same batch, in other blocks."""
        device = self.seq_lens.device
        return replace(
            self,
            block_table=make_tensor(_padded(block_tables), "int32", device),
            slot_mapping=make_tensor(slot_mapping, "int64", device),
        )


def once_per_step(function: Callable[..., R]) -> Callable[..., R]:
    """Compute a function of the metadata once, for all layers of a step that ask for the same.

    The result is kept with the metadata and goes when that goes. So layers of several KV cache
    groups may ask in turn. Further arguments are given by place, and can be hashed.
    """

    @wraps(function)
    def ask(metadata: AttentionMetadata, *args: Any) -> R:
        key = (function, *args)
        if key not in metadata.computed:
            metadata.computed[key] = function(metadata, *args)
        return metadata.computed[key]

    return ask


def _padded(block_tables: list[list[int]]) -> list[list[int]]:
    """Tables as the rows of a rectangle, filled up with the null block."""
    width = max(len(table) for table in block_tables)
    return [table + [0] * (width - len(table)) for table in block_tables]
