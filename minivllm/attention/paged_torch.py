"""Paged attention in plain PyTorch: gather each sequence's blocks by its table, then attend."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from minivllm.attention.backend import AttentionBackend


class PagedTorch(AttentionBackend):
    """Runs wherever torch does, one sequence after the other."""

    name = "paged_torch"

    def attend(self, query, key_cache, value_cache, metadata, scale, sliding_window=None):
        block_size = key_cache.shape[1]
        output = torch.empty_like(query)
        starts = metadata.query_start_loc.tolist()
        for i, seq_len in enumerate(metadata.seq_lens.tolist()):
            rows = slice(starts[i], starts[i + 1])
            query_len = starts[i + 1] - starts[i]

            # 1. Translate: the physical blocks of this sequence, in logical order, become one
            #    contiguous [seq_len, num_kv_heads, head_dim]; the last block's end falls off.
            blocks = metadata.block_table[i, : -(-seq_len // block_size)]
            keys = key_cache[blocks].flatten(0, 1)[:seq_len]
            values = value_cache[blocks].flatten(0, 1)[:seq_len]

            # 2. Attend: a single row sees all; several rows are a triangle at the right-hand end.
            mask = None
            if query_len > 1 or sliding_window is not None:
                mask = torch.ones(query_len, seq_len, dtype=torch.bool, device=query.device)
                mask = mask.tril(diagonal=seq_len - query_len)
                if sliding_window is not None:
                    mask = mask.triu(diagonal=seq_len - query_len - sliding_window + 1)
            heads_first = (x.transpose(0, 1).unsqueeze(0) for x in (query[rows], keys, values))
            attended = F.scaled_dot_product_attention(
                *heads_first, attn_mask=mask, scale=scale, enable_gqa=True
            )
            output[rows] = attended[0].transpose(0, 1)
        return output
