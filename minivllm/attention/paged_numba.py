"""Paged decode in numba: loops over memory, the definition of paged attention, fast on a CPU.

Blocks are read where they are, through the block table, so that nothing is copied or padded. This
file is imported only when it is used: numba need not be there.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import prange

from minivllm.attention.paged_torch import PagedTorch
from minivllm.ops.compiled import as_numpy, exp, flat, kernel, narrow, use_threads, widen

WORTH_SHARING = 1_000_000
"""Query numbers times keys from which on several threads are woken: a quarter of a millisecond's
work. On a busy machine waking one can take longer than that."""
WORTH_SHARING_WRITES = 2**18  # numbers of K and V
MOST_ROWS = 8  # of one sequence in a step; with more of them torch's products are faster


class PagedNumba(PagedTorch):
    """Numba backend: compiled loops for decodes and for drafts to verify, torch for the rest.

    A decode reads each key for a handful of query heads, so that all depends on how it is read, and
    so it is for the few rows of a sequence that verify drafts. A step with prompts is products of
    large matrices, and those are best left to torch.
    """

    name = "paged_numba"

    def attend_each(self, query, key_cache, value_cache, metadata, scale, sliding_window=None):
        inputs = query, key_cache, value_cache
        if metadata.max_query_len > MOST_ROWS:
            return super().attend_each(*inputs, metadata, scale, sliding_window)
        wide = query.dtype == torch.float16  # which loops read, but do not write
        output = torch.empty(query.shape, dtype=torch.float32 if wide else query.dtype)
        lse = torch.empty(query.shape[:2])
        use_threads(metadata.max_seq_len * query.numel(), WORTH_SHARING)
        _decode(
            as_numpy(output),
            lse.numpy(),
            query.float().contiguous().numpy(),
            as_numpy(key_cache),
            as_numpy(value_cache),
            metadata.block_table.numpy(),
            metadata.query_start_loc.numpy(),
            metadata.seq_lens.numpy(),
            np.float32(scale),
            sliding_window or np.iinfo(np.int32).max,
        )
        return output.to(query.dtype), lse

    def write_slots(self, key, value, key_cache, value_cache, slot_mapping):
        use_threads(2 * key.numel(), WORTH_SHARING_WRITES)
        caches = (as_numpy(cache.flatten(0, 1).flatten(1)) for cache in (key_cache, value_cache))
        _write_slots(*flat(key), *flat(value), *caches, slot_mapping.numpy())


@kernel(parallel=True)
def _decode(
    output, lse, query, key_cache, value_cache, block_table, starts, seq_lens, scale, window
):
    for i in prange(len(seq_lens)):  # each on any thread
        rows = slice(starts[i], starts[i + 1])
        _paged_decode(
            output[rows],
            lse[rows],
            query[rows],
            key_cache,
            value_cache,
            block_table[i],
            seq_lens[i],
            scale,
            window,
        )


@kernel
def _paged_decode(output, lse, query, key_cache, value_cache, block_table, end, scale, window):
    """The newest tokens of one sequence of length ``end``. In float32, whatever the cache is in."""
    block_size, num_kv_heads, head_dim = key_cache.shape[1:]
    num_rows, num_heads = query.shape[:2]
    group = num_heads // num_kv_heads  # query heads that share one KV head
    begin = max(0, end - num_rows + 1 - window)  # of what the first row sees
    blocks = range(begin // block_size, (end - 1) // block_size + 1)
    weights = np.empty((num_rows, num_heads, end - begin), np.float32)

    # 1. The score of every token: its key times the query, for each row and head. All heads of a
    #    token are side by side in a block, so memory is read in the order in which it lies.
    for b in blocks:
        keys = key_cache[block_table[b]]
        first, last = max(begin - b * block_size, 0), min(end - b * block_size, block_size)
        at = b * block_size - begin  # where the block's weights begin
        for slot in range(first, last):
            for kv_head in range(num_kv_heads):
                key = keys[slot, kv_head]
                for row in range(num_rows):
                    for h in range(kv_head * group, (kv_head + 1) * group):
                        dot = np.float32(0)
                        for d in range(head_dim):
                            dot += query[row, h, d] * widen(key[d])
                        weights[row, h, at + slot] = dot * scale
    # 2. Softmax over what a row sees; the rest weighs nothing. The largest score is taken off
    #    first, so that exp cannot overflow.
    for row in range(num_rows):
        stop = end - begin - (num_rows - 1 - row)
        start = max(0, stop - window)
        for h in range(num_heads):
            of_row = weights[row, h]
            largest = np.float32(-np.inf)
            for i in range(start, stop):
                largest = max(largest, of_row[i])
            total = np.float32(0)
            for i in range(start, stop):
                of_row[i] = exp(of_row[i] - largest)
                total += of_row[i]
            lse[row, h] = largest + np.log(total)
            share = np.float32(1) / total
            for i in range(start, stop):
                of_row[i] *= share
            of_row[:start] = 0
            of_row[stop:] = 0
    # 3. The sum of the values, each with its weight; four tokens at a time, so that the sums, which
    #    are read and written for each, are so less often.
    sums = np.zeros((num_rows, num_heads, head_dim), np.float32)
    for b in blocks:
        values = value_cache[block_table[b]]
        first, last = max(begin - b * block_size, 0), min(end - b * block_size, block_size)
        at = b * block_size - begin
        for kv_head in range(num_kv_heads):
            slot = first
            while slot + 4 <= last:
                v0, v1 = values[slot, kv_head], values[slot + 1, kv_head]
                v2, v3 = values[slot + 2, kv_head], values[slot + 3, kv_head]
                for row in range(num_rows):
                    for h in range(kv_head * group, (kv_head + 1) * group):
                        w0, w1 = weights[row, h, at + slot], weights[row, h, at + slot + 1]
                        w2, w3 = weights[row, h, at + slot + 2], weights[row, h, at + slot + 3]
                        for d in range(head_dim):
                            sums[row, h, d] += (w0 * widen(v0[d]) + w1 * widen(v1[d])) + (
                                w2 * widen(v2[d]) + w3 * widen(v3[d])
                            )
                slot += 4
            for rest in range(slot, last):
                value = values[rest, kv_head]
                for row in range(num_rows):
                    for h in range(kv_head * group, (kv_head + 1) * group):
                        weight = weights[row, h, at + rest]
                        for d in range(head_dim):
                            sums[row, h, d] += weight * widen(value[d])
    for row in range(num_rows):
        for h in range(num_heads):
            for d in range(head_dim):
                output[row, h, d] = narrow(sums[row, h, d], output)


@kernel(parallel=True)
def _write_slots(k, k_at, k_stride, v, v_at, v_stride, key_cache, value_cache, slot_mapping):
    size = key_cache.shape[1]
    for i in prange(len(slot_mapping)):
        slot = slot_mapping[i]
        key, value = key_cache[slot], value_cache[slot]
        from_k, from_v = k_at + i * k_stride, v_at + i * v_stride
        for d in range(size):
            key[d] = k[from_k + d]
            value[d] = v[from_v + d]
