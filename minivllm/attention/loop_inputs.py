"""What compiled loops of attention read and write: arrays and numbers, as numba knows them."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

from minivllm.attention.metadata import AttentionMetadata
from minivllm.ops.compiled import as_numpy, flat

EVERYTHING = 2**31 - 1  # a window that is longer than any sequence


class LoopInputs(NamedTuple):
    """A layer's tensors, and what holds for all of its rows; 16-bit numbers are their bits."""

    output: np.ndarray  # [num_tokens, num_heads, head_dim], to be written
    lse: np.ndarray  # float32 [num_tokens, num_heads], to be written
    query: np.ndarray  # the memory of the queries, from the first one on
    query_stride: int  # from one row's to the next one's
    key_cache: np.ndarray  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_cache: np.ndarray
    scale: np.float32
    window: int  # how many tokens a token sees

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
        """Those of a call of ``AttentionBackend.attend``, without a copy of any tensor."""
        caches, window = (as_numpy(key_cache), as_numpy(value_cache)), sliding_window or EVERYTHING
        return cls(as_numpy(output), lse.numpy(), *flat(query), *caches, np.float32(scale), window)

    def work(self, rows: RaggedRows) -> int:
        """Query numbers times keys: what a loop over these rows has to do."""
        _, num_heads, head_dim = self.output.shape
        return rows.num_pairs * num_heads * head_dim


class RaggedRows:
    """Rows of some sequences in a flat batch, and the keys that they attend to.

    Args:
        rows: int64 ``[n]``: the rows, one sequence after the other.
        starts: int64 ``[num_seqs + 1]``: where in them those of a sequence begin.
        block_table: int32 ``[num_seqs, max_blocks]``.
        seq_lens: int32 ``[num_seqs]``: how many keys there are.
    """

    def __init__(
        self, rows: np.ndarray, starts: np.ndarray, block_table: np.ndarray, seq_lens: np.ndarray
    ):
        self.arrays = rows, starts, block_table, seq_lens
        self.num_pairs = int((starts[1:] - starts[:-1]) @ seq_lens)  # of a row and a key

    @classmethod
    def of_one(cls, num_rows: int, block_ids: np.ndarray, num_keys: int) -> RaggedRows:
        """All rows of a batch, as if they were those of one sequence with these blocks."""
        starts, seq_lens = np.array([0, num_rows]), np.array([num_keys], np.int32)
        return cls(np.arange(num_rows), starts, block_ids[np.newaxis], seq_lens)


@lru_cache(maxsize=2)  # every layer asks for the same
def few_and_many(
    metadata: AttentionMetadata, most_rows: int
) -> tuple[RaggedRows | None, RaggedRows | None]:
    """The sequences of a batch with at most so many rows, and those with more; None if none has."""
    starts = metadata.query_start_loc.numpy().astype(np.int64)
    table, seq_lens = metadata.block_table.numpy(), metadata.seq_lens.numpy()
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
