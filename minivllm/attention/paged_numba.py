"""Paged decode in numba: loops over memory, the definition of paged attention, fast on a CPU.

Blocks are read where they are, through the block table, so that nothing is copied or padded. This
file is imported only when it is used: numba need not be there.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numba import prange

from minivllm.attention.metadata import AttentionMetadata
from minivllm.attention.paged_torch import PagedTorch, attend_tiles, tile_batches
from minivllm.attention.prefill_numba import Chunks, prefill
from minivllm.ops.compiled import as_numpy, exp, flat, kernel, narrow, parallel_kernel, widen

WORTH_SHARING = 2**19
"""Query numbers times keys from which on several threads are woken: some 150 microseconds of
work. On a busy machine waking one can take longer than that."""
WORTH_SHARING_WRITES = 2**18  # numbers of K and V
_NO_WINDOW = np.iinfo(np.int32).max
MOST_ROWS = 8  # of one sequence that are decoded; with more of them products are faster
WORTH_A_UNIT = 400  # tokens of a sequence from which on a unit for bfloat16's products is faster


class PagedNumba(PagedTorch):
    """Numba backend: compiled loops for decodes, drafts to verify, and prompts.

    A decode reads each key for a handful of query heads, so that all depends on how it is read, and
    so it is for the few rows of a sequence that verify drafts. A prompt or a chunk of it is made of
    products of matrices; where the processor has a unit for those, torch knows how to use it.
    """

    name = "paged_numba"

    def attend_each(self, query, key_cache, value_cache, metadata, scale, sliding_window=None):
        output, lse = _empty(query)
        inputs = query, key_cache, value_cache
        suits_torch = metadata.max_seq_len >= WORTH_A_UNIT and _has_matrix_unit(query.dtype)
        if metadata.max_query_len > MOST_ROWS and suits_torch:
            block_size = key_cache.shape[1]
            batches = tile_batches(metadata, block_size, sliding_window, fewest_rows=MOST_ROWS + 1)
            attend_tiles(batches, output, lse, *inputs, scale)
        elif metadata.max_query_len > MOST_ROWS:
            prefill(output, lse, *inputs, prompts(metadata), scale, sliding_window)
        num_keys, arrays = decodes(metadata)
        _decode(
            num_keys * query.shape[1] * query.shape[2],
            as_numpy(output),
            lse.numpy(),
            *flat(query),
            as_numpy(key_cache),
            as_numpy(value_cache),
            *arrays,
            np.float32(scale),
            sliding_window or _NO_WINDOW,
        )
        return output.to(query.dtype), lse

    def attend_to_blocks(self, key_cache, value_cache, query, block_ids, scale):
        if _has_matrix_unit(query.dtype):
            return super().attend_to_blocks(key_cache, value_cache, query, block_ids, scale)
        output, lse = _empty(query)
        num_rows, num_keys = len(query), len(block_ids) * key_cache.shape[1]
        starts, seq_lens = np.array([0, num_rows]), np.array([num_keys])
        one = block_ids.numpy()[np.newaxis]
        chunks = Chunks(np.arange(num_rows), starts, one, seq_lens, is_causal=False)
        prefill(output, lse, query, key_cache, value_cache, chunks, scale)
        return output.to(query.dtype), lse

    def write_slots(self, key, value, key_cache, value_cache, slot_mapping):
        caches = as_numpy(key_cache), as_numpy(value_cache)
        _write_slots(2 * key.numel(), *flat(key), *flat(value), *caches, slot_mapping.numpy())


def _has_matrix_unit(dtype: torch.dtype) -> bool:
    """Whether the processor has a unit for products of such matrices (AMX), which torch uses."""
    return dtype == torch.bfloat16 and torch.cpu._is_amx_tile_supported()


def _empty(query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and lse to be written; loops read float16, but do not write it."""
    wide = query.dtype == torch.float16
    output = torch.empty(query.shape, dtype=torch.float32 if wide else query.dtype)
    return output, torch.empty(query.shape[:2])


@lru_cache(maxsize=2)  # every layer asks for the same
def decodes(metadata: AttentionMetadata) -> tuple[int, tuple[np.ndarray, ...]]:
    """The sequences of few rows in a batch: how many keys their rows read, and what loops need.

    These are their numbers in the batch, its block table, where its sequences begin, and their
    lengths.
    """
    starts, seq_lens = metadata.query_start_loc.numpy(), metadata.seq_lens.numpy()
    num_rows = np.diff(starts)
    members = np.flatnonzero(num_rows <= MOST_ROWS)
    num_keys = int(num_rows[members] @ seq_lens[members])
    return num_keys, (members, metadata.block_table.numpy(), starts, seq_lens)


@lru_cache(maxsize=2)
def prompts(metadata: AttentionMetadata) -> Chunks:
    """The sequences of many rows in a batch: prompts, and chunks of them."""
    starts, seq_lens = metadata.query_start_loc.numpy(), metadata.seq_lens.numpy()
    num_rows = np.diff(starts)
    are_many = num_rows > MOST_ROWS
    rows = np.flatnonzero(np.repeat(are_many, num_rows))
    begins = np.append(0, np.cumsum(num_rows[are_many]))
    return Chunks(rows, begins, metadata.block_table.numpy()[are_many], seq_lens[are_many])


@parallel_kernel(WORTH_SHARING)
def _decode(
    output,
    lse,
    query,
    query_at,
    query_stride,
    key_cache,
    value_cache,
    members,
    block_table,
    starts,
    seq_lens,
    scale,
    window,
):
    num_kv_heads = key_cache.shape[2]
    group, head_dim = output.shape[1] // num_kv_heads, output.shape[2]
    for task in prange(len(members) * num_kv_heads):  # each on any thread
        seq, kv_head = members[task // num_kv_heads], task % num_kv_heads
        first, end = starts[seq], starts[seq + 1]
        heads = slice(kv_head * group, (kv_head + 1) * group)
        # side by side and in float32, as the loops want them: these are slices of a wider matrix
        queries = np.empty((end - first, group, head_dim), np.float32)
        for row in range(end - first):
            at = query_at + (first + row) * query_stride + kv_head * group * head_dim
            for h in range(group):
                for d in range(head_dim):
                    queries[row, h, d] = widen(query[at + h * head_dim + d])
        _paged_decode(
            output[first:end, heads],
            lse[first:end, heads],
            queries,
            key_cache,
            value_cache,
            block_table[seq],
            seq_lens[seq],
            kv_head,
            scale,
            window,
        )


@kernel
def _paged_decode(
    output, lse, query, key_cache, value_cache, block_table, end, kv_head, scale, window
):
    """Paged decode of one sequence of length ``end``, for the query heads of one KV head.

    In float32, whatever the cache is in.
    """
    num_rows, group, head_dim = query.shape
    block_size = key_cache.shape[1]
    first = max(0, end - num_rows + 1 - window) // block_size  # the first block that a row sees
    blocks = block_table[first : (end - 1) // block_size + 1]
    end -= first * block_size  # from here on positions are counted from that block's beginning
    weights = np.empty((num_rows, group, len(blocks) * block_size), np.float32)

    # 1. The score of every token: its key times the query, for each row and head. Four tokens at a
    #    time, so that their sums do not wait for one another.
    for b in range(len(blocks)):
        keys = key_cache[blocks[b]]
        slot = 0
        while slot + 4 <= block_size:
            k0, k1 = keys[slot, kv_head], keys[slot + 1, kv_head]
            k2, k3 = keys[slot + 2, kv_head], keys[slot + 3, kv_head]
            at = b * block_size + slot
            for row in range(num_rows):
                for h in range(group):
                    s0 = s1 = s2 = s3 = np.float32(0)
                    for d in range(head_dim):
                        q = query[row, h, d]
                        s0, s1 = s0 + q * widen(k0[d]), s1 + q * widen(k1[d])
                        s2, s3 = s2 + q * widen(k2[d]), s3 + q * widen(k3[d])
                    scores = weights[row, h]
                    scores[at], scores[at + 1] = s0 * scale, s1 * scale
                    scores[at + 2], scores[at + 3] = s2 * scale, s3 * scale
            slot += 4
        for rest in range(slot, block_size):
            key = keys[rest, kv_head]
            for row in range(num_rows):
                for h in range(group):
                    score = np.float32(0)
                    for d in range(head_dim):
                        score += query[row, h, d] * widen(key[d])
                    weights[row, h, b * block_size + rest] = score * scale
    # 2. Softmax over what a row sees; the rest of its blocks weighs nothing.
    largest = np.empty(block_size, np.float32)
    for row in range(num_rows):
        stop = end - (num_rows - 1 - row)
        for h in range(group):
            lse[row, h] = _softmax(weights[row, h], max(0, stop - window), stop, largest)
    # 3. The sum of the values, each with its weight; eight tokens at a time, so that the sums,
    #    which are read and written for each, are so less often.
    sums = np.zeros((num_rows, group, head_dim), np.float32)
    for b in range(len(blocks)):
        values = value_cache[blocks[b]]
        last = min(end - b * block_size, block_size)  # nobody may look at what is in a slot after
        slot = 0
        while slot + 8 <= last:
            v0, v1 = values[slot, kv_head], values[slot + 1, kv_head]
            v2, v3 = values[slot + 2, kv_head], values[slot + 3, kv_head]
            v4, v5 = values[slot + 4, kv_head], values[slot + 5, kv_head]
            v6, v7 = values[slot + 6, kv_head], values[slot + 7, kv_head]
            at = b * block_size + slot
            for row in range(num_rows):
                for h in range(group):
                    w = weights[row, h, at : at + 8]
                    w0, w1, w2, w3, w4, w5, w6, w7 = w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]
                    for d in range(head_dim):
                        sums[row, h, d] += (
                            (w0 * widen(v0[d]) + w1 * widen(v1[d]))
                            + (w2 * widen(v2[d]) + w3 * widen(v3[d]))
                        ) + (
                            (w4 * widen(v4[d]) + w5 * widen(v5[d]))
                            + (w6 * widen(v6[d]) + w7 * widen(v7[d]))
                        )
            slot += 8
        for rest in range(slot, last):
            value = values[rest, kv_head]
            for row in range(num_rows):
                for h in range(group):
                    weight = weights[row, h, b * block_size + rest]
                    for d in range(head_dim):
                        sums[row, h, d] += weight * widen(value[d])
    for row in range(num_rows):
        for h in range(group):
            for d in range(head_dim):
                output[row, h, d] = narrow(sums[row, h, d], output)


@kernel
def _softmax(row, start, stop, largest):
    """Softmax of the scores in ``[start, stop)``, in place, and 0 elsewhere; returns their lse.

    The largest score is taken off first, so that exp cannot overflow. It is the largest of the
    largest of each slot: a processor compares the slots of two blocks at once.
    """
    block_size = len(largest)
    row[:start] = -np.inf
    row[stop:] = -np.inf
    largest[:] = row[:block_size]
    for begin in range(block_size, len(row), block_size):
        block = row[begin : begin + block_size]
        for slot in range(block_size):
            largest[slot] = max(largest[slot], block[slot])
    most = largest[0]
    for slot in range(1, block_size):
        most = max(most, largest[slot])
    total = np.float32(0)
    for i in range(len(row)):  # e to the minus infinity is almost 0 here
        row[i] = exp(row[i] - most)
        total += row[i]
    share = np.float32(1) / total
    for i in range(len(row)):
        row[i] *= share
    row[:start] = 0
    row[stop:] = 0
    return most + np.log(total)


@parallel_kernel(WORTH_SHARING_WRITES)
def _write_slots(k, k_at, k_stride, v, v_at, v_stride, key_cache, value_cache, slot_mapping):
    _, block_size, num_heads, head_dim = key_cache.shape
    for i in prange(len(slot_mapping)):
        block, slot = slot_mapping[i] // block_size, slot_mapping[i] % block_size
        keys, values = key_cache[block, slot], value_cache[block, slot]
        from_k, from_v = k_at + i * k_stride, v_at + i * v_stride
        for h in range(num_heads):
            for d in range(head_dim):
                keys[h, d] = k[from_k + h * head_dim + d]
                values[h, d] = v[from_v + h * head_dim + d]
