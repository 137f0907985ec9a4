"""Arguments of compiled attention loops: arrays and scalars, as numba knows them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from minivllm.attention.cascade import SharedPrefix, find_cascade
from minivllm.attention.metadata import AttentionMetadata, once_per_step
from minivllm.cpu.compiled import flat, row_numbers
from minivllm.utils.tensors import as_numpy

EVERYTHING = 2**31 - 1  # a window that is longer than any sequence


NO_SCALES: np.ndarray = np.empty((0, 0, 0), np.float32)


class LoopInputs(NamedTuple):
    """Arrays of a layer, and scalars for all of its rows; short floats are their bits."""

    output: np.ndarray  # [num_tokens, num_heads, head_dim], to be written
    lse: np.ndarray  # float32 [num_tokens, num_heads], to be written
    query: np.ndarray  # the memory of the queries, from the first one on
    query_stride: int  # from one row's to the next one's
    key_cache: np.ndarray  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_cache: np.ndarray
    scale: np.float32
    window: int  # how many tokens a token sees
    # float32 [num_blocks, block_size, num_kv_heads], of each token's K and V; empty: there are none
    key_scales: np.ndarray = NO_SCALES
    value_scales: np.ndarray = NO_SCALES

    @classmethod
    def of(
        cls,
        output: torch.Tensor,
        lse: torch.Tensor,
        query: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        scale: float,
        sliding_window: int | None = None,
    ) -> LoopInputs:
        """Make them from the arguments of ``AttentionBackend.attend``, without a copy."""
        flat_query, query_stride = flat(query)
        return cls(
            output=as_numpy(output),
            lse=lse.numpy(),
            query=flat_query,
            query_stride=query_stride,
            key_cache=as_numpy(key_cache),
            value_cache=as_numpy(value_cache),
            scale=np.float32(scale),
            window=sliding_window or EVERYTHING,
        )

    def work(self, rows: RaggedRows) -> int:
        """Multiply-adds of attention over these rows, to decide on threads."""
        _, num_heads, head_dim = self.output.shape
        return rows.num_pairs * num_heads * head_dim


class RaggedRows:
    """Ragged rows of some sequences in a flat batch, and the keys that they attend to.

    Args:
        rows: int64 ``[n]``: the rows, one sequence after the other.
        starts: int64 ``[num_seqs + 1]``: where in them those of a sequence begin.
        block_table: int32 ``[num_seqs, max_blocks]``.
        seq_lens: int32 ``[num_seqs]``: how many keys there are.
    """

    def __init__(
        self, rows: np.ndarray, starts: np.ndarray, block_table: np.ndarray, seq_lens: np.ndarray
    ):
        self.rows = rows
        self.arrays = rows, starts, block_table, seq_lens
        self.num_pairs = int((starts[1:] - starts[:-1]) @ seq_lens)  # of a row and a key


class AttentionPlan(NamedTuple):
    """Plan of a batch's attention: the rows of each loop; None where it has none."""

    few: RaggedRows | None  # sequences with a few rows: decodes, drafts to verify
    many: RaggedRows | None  # prompts and chunks
    prefixes: RaggedRows | None  # a prefix as a sequence: the rows of all that share it, its blocks


@once_per_step
def plan_ragged(metadata: AttentionMetadata) -> RaggedRows:
    """Rows of all sequences, and their own keys: K and V of this step as blocks of one row."""
    starts = metadata.query_start_loc.numpy().astype(np.int64)
    seq_lens = np.diff(starts).astype(np.int32)
    table = starts[:-1, None] + np.arange(seq_lens.max())  # past a sequence's end it is not read
    return RaggedRows(np.arange(starts[-1]), starts, table.astype(np.int32), seq_lens)


@once_per_step
def plan_attention(
    metadata: AttentionMetadata, block_size: int, most_rows: int, may_share: bool
) -> AttentionPlan:
    """Plan a batch's attention.

    Args:
        metadata: of the batch.
        block_size: positions per block.
        most_rows: of a sequence that are a few.
        may_share: what sequences share may be read once for all.
    """
    cascade = find_cascade(metadata, block_size) if may_share else None
    if cascade is None:
        few, many = _few_and_many(metadata, most_rows)
        return AttentionPlan(few, many, prefixes=None)
    few, many = _few_and_many(cascade.rest, most_rows)
    return AttentionPlan(few, many, prefixes=_shared_rows(cascade.prefixes, block_size))


def _few_and_many(
    metadata: AttentionMetadata, most_rows: int
) -> tuple[RaggedRows | None, RaggedRows | None]:
    starts = metadata.query_start_loc.numpy().astype(np.int64)
    table = metadata.block_table.numpy()
    seq_lens = metadata.seq_lens.numpy()
    if metadata.max_query_len <= most_rows:  # most often: a batch of decodes
        return RaggedRows(np.arange(starts[-1]), starts, table, seq_lens), None
    num_rows = starts[1:] - starts[:-1]

    def part(chosen: np.ndarray) -> RaggedRows | None:
        if not chosen.any():
            return None
        rows = np.flatnonzero(np.repeat(chosen, num_rows))
        begins = np.append(0, np.cumsum(num_rows[chosen]))
        return RaggedRows(rows, begins, table[chosen], seq_lens[chosen])

    return part(num_rows <= most_rows), part(num_rows > most_rows)


def _shared_rows(prefixes: list[SharedPrefix], block_size: int) -> RaggedRows:
    rows = [row_numbers(prefix.rows) for prefix in prefixes]
    starts = np.append(0, np.cumsum([len(part) for part in rows]))
    num_blocks = np.array([len(prefix.block_ids) for prefix in prefixes], np.int32)
    table = np.zeros((len(prefixes), num_blocks.max()), np.int32)
    for row, prefix in zip(table, prefixes, strict=True):
        row[: len(prefix.block_ids)] = prefix.block_ids.numpy()
    return RaggedRows(np.concatenate(rows), starts, table, num_blocks * np.int32(block_size))
