"""What compiled loops of attention read and write: arrays and numbers, as numba knows them."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

from minivllm.attention.metadata import AttentionMetadata
from minivllm.ops.compiled import as_numpy, flat


class LoopInputs(NamedTuple):
    """A layer's tensors, and what holds for all of its rows; 16-bit numbers are their bits."""

    output: np.ndarray  # [num_tokens, num_heads, head_dim], to be written
    lse: np.ndarray  # float32 [num_tokens, num_heads], to be written
    query: np.ndarray  # the memory that holds the queries
    query_at: int  # where they begin in it
    query_stride: int  # from one row's to the next one's
    key_cache: np.ndarray  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_cache: np.ndarray
    scale: np.float32
    window: int  # how many tokens a token sees; a very large number for all before it

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
        window = sliding_window or np.iinfo(np.int32).max
        caches = as_numpy(key_cache), as_numpy(value_cache)
        return cls(as_numpy(output), lse.numpy(), *flat(query), *caches, np.float32(scale), window)

    def work(self, rows: RaggedRows) -> int:
        """Query numbers times keys: what a loop over these rows has to do."""
        _, num_heads, head_dim = self.output.shape
        return int(np.diff(rows.starts) @ rows.seq_lens) * num_heads * head_dim


class RaggedRows(NamedTuple):
    """Rows of some sequences in a flat batch, and the keys that they attend to."""

    rows: np.ndarray  # int64 [n]: the rows, one sequence after the other
    starts: np.ndarray  # [num_seqs + 1]: where in them those of a sequence begin
    block_table: np.ndarray  # [num_seqs, max_blocks]
    seq_lens: np.ndarray  # [num_seqs]: how many keys there are


@lru_cache(maxsize=2)  # every layer asks for the same
def few_and_many(metadata: AttentionMetadata, most_rows: int) -> tuple[RaggedRows, RaggedRows]:
    """The sequences of a batch with at most so many rows, and those with more."""
    starts, seq_lens = metadata.query_start_loc.numpy(), metadata.seq_lens.numpy()
    table, num_rows = metadata.block_table.numpy(), np.diff(starts)

    def part(chosen: np.ndarray) -> RaggedRows:
        rows = np.flatnonzero(np.repeat(chosen, num_rows))
        begins = np.append(0, np.cumsum(num_rows[chosen]))
        return RaggedRows(rows, begins, table[chosen], seq_lens[chosen])

    return part(num_rows <= most_rows), part(num_rows > most_rows)
