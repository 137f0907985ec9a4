"""Paged attention in numba: loops that read blocks where they are, through the block table.

This file is imported only when it is used: numba need not be there.
"""

from __future__ import annotations

import numpy as np
import torch

from minivllm.attention.backend import AttentionBackend
from minivllm.attention.metadata import AttentionMetadata
from minivllm.cpu.attention.decode import decode, most_rows
from minivllm.cpu.attention.inputs import AttentionPlan, LoopInputs, plan_attention, plan_ragged
from minivllm.cpu.attention.prefill import prefill
from minivllm.cpu.compiled import flat, parallel_kernel
from minivllm.cpu.fused import merge_attn_states_loop
from minivllm.cpu.sharing import shared_range
from minivllm.utils.tensors import as_numpy

WORTH_SHARING_WRITES = 2**18  # elements of K and V


class PagedNumba(AttentionBackend):
    """Numba backend: compiled loops for decodes, drafts to verify, and prompts.

    A decode reads each key for a handful of query heads, so that all depends on how it is read, and
    so it is for the few rows of a sequence that verify drafts. A prompt or a chunk of it is made of
    products of matrices, and so are the rows of all sequences that share a prefix.
    """

    name = "paged_numba"

    def attend(self, query, key_cache, value_cache, metadata, scale, sliding_window=None):
        output, lse = _empty(query)
        inputs = LoopInputs.of(
            output,
            lse,
            query,
            key_cache=key_cache,
            value_cache=value_cache,
            scale=scale,
            sliding_window=sliding_window,
        )
        attend(inputs, plan_for(key_cache, metadata, sliding_window))
        return output.type_as(query)

    def attend_quantized(self, query, kv_cache, metadata, scale, sliding_window=None):
        plan = plan_for(kv_cache.key, metadata, sliding_window)
        decodes_only = plan.many is plan.prefixes is None
        if kv_cache.key.dtype == torch.float8_e5m2 and not decodes_only:
            # the loops of prompts read single numbers, which numba has not of e5m2
            return super().attend_quantized(query, kv_cache, metadata, scale, sliding_window)
        output, lse = _empty(query)
        inputs = LoopInputs.of(
            output,
            lse,
            query,
            key_cache=kv_cache.key,
            value_cache=kv_cache.value,
            scale=scale * kv_cache.k_scale,
            sliding_window=sliding_window,
        )
        if kv_cache.key_scales is not None:
            scales = kv_cache.key_scales.numpy(), kv_cache.value_scales.numpy()
            inputs = inputs._replace(key_scales=scales[0], value_scales=scales[1])
        attend(inputs, plan)
        return output.type_as(query)

    def attend_ragged(self, query, key, value, metadata, scale):
        output, lse = _empty(query)
        inputs = LoopInputs.of(  # in blocks of one row each, without a copy
            output,
            lse,
            query,
            key_cache=key.unsqueeze(1),
            value_cache=value.unsqueeze(1),
            scale=scale,
        )
        prefill(inputs, plan_ragged(metadata), is_causal=False)
        return output.type_as(query)

    def write_slots(self, key, value, key_cache, value_cache, slot_mapping):
        keys, k_stride = flat(key)
        values, v_stride = flat(value)
        write_slots_loop(
            2 * key.numel(),
            keys, k_stride, values, v_stride, as_numpy(key_cache), as_numpy(value_cache),
            slot_mapping.numpy(),
        )  # fmt: skip


def plan_for(
    key_cache: torch.Tensor | np.ndarray, metadata: AttentionMetadata, sliding_window: int | None
) -> AttentionPlan:
    """Plan of a batch's attention in a layer with this cache."""
    may_share = sliding_window is None
    return plan_attention(metadata, key_cache.shape[1], most_rows(key_cache), may_share)


def attend(inputs: LoopInputs, plan: AttentionPlan) -> None:
    """Fill in the attention of all rows of a batch."""
    if plan.many is not None:
        prefill(inputs, plan.many)
    if plan.few is not None:
        decode(inputs, plan.few)
    if plan.prefixes is not None:
        output, lse, rows = inputs.output, inputs.lse, plan.prefixes.rows
        other, other_lse = np.empty_like(output), np.empty_like(lse)
        prefill(inputs._replace(output=other, lse=other_lse), plan.prefixes, is_causal=False)
        merge_attn_states_loop(other.size, output, lse, rows, other, other_lse, rows)


def _empty(query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and lse to be written; loops read float16, but do not write it."""
    wide = query.dtype == torch.float16
    output = torch.empty(query.shape, dtype=torch.float32 if wide else query.dtype)
    return output, torch.empty(query.shape[:2])


@parallel_kernel(WORTH_SHARING_WRITES)
def write_slots_loop(share, k, k_stride, v, v_stride, key_cache, value_cache, slot_mapping):
    """Put each token's K and V where its slot is; ``k`` and ``v`` as ``flat`` has them."""
    _, block_size, num_heads, head_dim = key_cache.shape
    for i in shared_range(share, len(slot_mapping)):
        block, slot = slot_mapping[i] // block_size, slot_mapping[i] % block_size
        keys, values = key_cache[block, slot], value_cache[block, slot]
        from_k, from_v = i * k_stride, i * v_stride
        for h in range(num_heads):
            for d in range(head_dim):
                keys[h, d] = k[from_k + h * head_dim + d]
                values[h, d] = v[from_v + h * head_dim + d]
