"""Reference attention: the definition in loops over rows, heads and positions; slow and short.

(notebook 09)
"""

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
        group = query.shape[1] // key_cache.shape[2]  # query heads that share one KV head
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
                for head in range(query.shape[1]):
                    scores = keys[:, head // group] @ query[row, head].to(self.dtype) * scale
                    output[row, head] = scores.softmax(0) @ values[:, head // group]
        return output

    def attend_ragged(self, query, key, value, metadata, scale):
        group = query.shape[1] // key.shape[1]
        output = torch.empty_like(query)
        for begin, end in pairwise(metadata.query_start_loc.tolist()):
            keys, values = (x[begin:end].to(self.dtype) for x in (key, value))
            rows = query[begin:end].to(self.dtype)
            for head in range(query.shape[1]):
                scores = rows[:, head] @ keys[:, head // group].T * scale
                output[begin:end, head] = scores.softmax(-1) @ values[:, head // group]
        return output
