"""Paged attention in numba: loops that read blocks where they are, through the block table.

This file is imported only when it is used: numba need not be there.
"""

from __future__ import annotations

import torch
from numba import prange

from minivllm.attention.decode_numba import decode, most_rows
from minivllm.attention.loop_inputs import LoopInputs, RaggedRows, few_and_many
from minivllm.attention.paged_torch import PagedTorch
from minivllm.attention.prefill_numba import prefill
from minivllm.ops.compiled import as_numpy, flat, parallel_kernel

WORTH_SHARING_WRITES = 2**18  # numbers of K and V


class PagedNumba(PagedTorch):
    """Numba backend: compiled loops for decodes, drafts to verify, and prompts.

    A decode reads each key for a handful of query heads, so that all depends on how it is read, and
    so it is for the few rows of a sequence that verify drafts. A prompt or a chunk of it is made of
    products of matrices.
    """

    name = "paged_numba"

    def attend_each(self, query, key_cache, value_cache, metadata, scale, sliding_window=None):
        output, lse = _empty(query)
        inputs = LoopInputs.of(output, lse, query, key_cache, value_cache, scale, sliding_window)
        few, many = few_and_many(metadata, most_rows(key_cache))
        if many is not None:
            prefill(inputs, many)
        if few is not None:
            decode(inputs, few)
        return output.type_as(query), lse

    def attend_to_blocks(self, key_cache, value_cache, query, block_ids, scale):
        output, lse = _empty(query)
        num_keys = len(block_ids) * key_cache.shape[1]
        rows = RaggedRows.of_one(len(query), block_ids.numpy(), num_keys)
        inputs = LoopInputs.of(output, lse, query, key_cache, value_cache, scale)
        prefill(inputs, rows, is_causal=False)
        return output.type_as(query), lse

    def write_slots(self, key, value, key_cache, value_cache, slot_mapping):
        caches = as_numpy(key_cache), as_numpy(value_cache)
        _write_slots(2 * key.numel(), *flat(key), *flat(value), *caches, slot_mapping.numpy())


def _empty(query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and lse to be written; loops read float16, but do not write it."""
    wide = query.dtype == torch.float16
    output = torch.empty(query.shape, dtype=torch.float32 if wide else query.dtype)
    return output, torch.empty(query.shape[:2])


@parallel_kernel(WORTH_SHARING_WRITES)
def _write_slots(k, k_stride, v, v_stride, key_cache, value_cache, slot_mapping):
    _, block_size, num_heads, head_dim = key_cache.shape
    for i in prange(len(slot_mapping)):
        block, slot = slot_mapping[i] // block_size, slot_mapping[i] % block_size
        keys, values = key_cache[block, slot], value_cache[block, slot]
        from_k, from_v = i * k_stride, i * v_stride
        for h in range(num_heads):
            for d in range(head_dim):
                keys[h, d] = k[from_k + h * head_dim + d]
                values[h, d] = v[from_v + h * head_dim + d]
