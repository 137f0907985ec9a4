"""Reference attention: the definition in loops over rows, heads and positions; slow and short."""

from __future__ import annotations

from itertools import pairwise

import torch

from minivllm.attention.backend import AttentionBackend


class Reference(AttentionBackend):
    """Reference backend, to which tests compare all others.

    Args:
        dtype: what to compute in; ``torch.float64`` to judge others by.
    """

    name = "reference"

    def __init__(self, dtype: torch.dtype = torch.float32):
        self.dtype = dtype

    def attend(self, query, key_cache, value_cache, metadata, scale, sliding_window=None):
        block_size = key_cache.shape[1]
        output = torch.empty_like(query)
        starts = metadata.query_start_loc.tolist()
        for seq, seq_len in enumerate(metadata.seq_lens.tolist()):
            table = metadata.block_table[seq].tolist()
            for row in range(starts[seq], starts[seq + 1]):
                position = seq_len - (starts[seq + 1] - row)
                begin = 0 if sliding_window is None else max(0, position - sliding_window + 1)
                visible = range(begin, position + 1)
                slots = [(table[p // block_size], p % block_size) for p in visible]
                keys = torch.stack([key_cache[slot] for slot in slots]).to(self.dtype)
                values = torch.stack([value_cache[slot] for slot in slots]).to(self.dtype)
                self._attend_row(output[row], query[row], keys, values, scale)
        return output

    def attend_ragged(self, query, key, value, metadata, scale):
        output = torch.empty_like(query)
        for begin, end in pairwise(metadata.query_start_loc.tolist()):
            keys, values = (x[begin:end].to(self.dtype) for x in (key, value))
            for row in range(begin, end):
                self._attend_row(output[row], query[row], keys, values, scale)
        return output

    def _attend_row(self, output, query, keys, values, scale) -> None:
        """Fill in the attention of one row, ``[num_heads, head_dim]``, to the keys that it sees."""
        group = len(query) // keys.shape[1]  # query heads that share one KV head
        for head in range(len(query)):
            scores = keys[:, head // group] @ query[head].to(self.dtype) * scale
            output[head] = scores.softmax(0) @ values[:, head // group]
