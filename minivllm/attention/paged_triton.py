"""Paged attention in Triton: for a GPU, and under Triton's interpreter for reading on a CPU.

The kernels are in ``attention/kernels``, which says how to turn the interpreter on.
"""

from __future__ import annotations

from functools import cache

import torch

from minivllm.attention.backend import AttentionBackend
from minivllm.attention.kernels.cache import copy_blocks, write_slots
from minivllm.attention.kernels.decode import paged_decode
from minivllm.attention.kernels.online_softmax import NO_WINDOW
from minivllm.attention.kernels.split_kv import choose_num_splits, split_decode
from minivllm.attention.kernels.varlen import varlen_attention


class PagedTriton(AttentionBackend):
    """Triton backend: a decode kernel, split or not, and a varlen kernel for everything else."""

    name = "paged_triton"
    supports_cuda_graphs = True

    def attend(self, query, key_cache, value_cache, metadata, scale, sliding_window=None):
        table = metadata.block_table
        window = sliding_window or NO_WINDOW
        if metadata.max_query_len > 1:
            return varlen_attention(
                query, key_cache, value_cache, table, metadata.query_start_loc,
                seq_lens=metadata.seq_lens, max_query_len=metadata.max_query_len,
                scale=scale, window=window,
            )  # fmt: skip
        num_splits = choose_num_splits(
            num_programs=len(query) * key_cache.shape[2],
            max_seq_len=min(metadata.max_seq_len, window),
            num_processors=_num_processors(query.device),
        )
        if num_splits > 1:
            return split_decode(
                query, key_cache, value_cache, table, metadata.seq_lens,
                scale=scale, num_splits=num_splits, window=window,
            )  # fmt: skip
        return paged_decode(
            query, key_cache, value_cache, table, metadata.seq_lens, scale=scale, window=window
        )

    def write_slots(self, key, value, key_cache, value_cache, slot_mapping):
        write_slots(key, value, key_cache, value_cache, slot_mapping)

    def copy_blocks(self, kv_cache, src, dst):
        # torch reads all before it writes; programs have no order, and know of no scales
        if set(src) & set(dst) or kv_cache.scales is not None:
            return super().copy_blocks(kv_cache, src, dst)
        if kv_cache.draft is not None:
            self.copy_blocks(kv_cache.draft, src, dst)
        return copy_blocks(kv_cache.data, src, dst)


@cache
def _num_processors(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).multi_processor_count
    return 1  # the interpreter runs one program after the other
