"""Paged prefill in numba: flash attention of prompts and chunks, a query in each SIMD lane.

Scores are kept with a key a row and a query a lane. So the largest score and the sum of each query
are those of its lane, and nothing ever crosses lanes. The query heads of a KV head fill the lanes
together. Both products are made as the processor does it best (``gemm/tile_product``). The
algorithm is Dao's FlashAttention-2, 2023.
(vLLM: vllm/v1/attention/backends/cpu_attn.py)
"""

from __future__ import annotations

from math import gcd

import numpy as np
import torch

from minivllm.cpu.attention.inputs import LoopInputs, RaggedRows
from minivllm.cpu.compiled import exp, kernel, narrow, parallel_kernel, widen
from minivllm.cpu.gemm.cache_lines import aligned
from minivllm.cpu.gemm.microkernel import WIDTH, exp_kernel, turn
from minivllm.cpu.gemm.tile_product import (
    LANES,
    VECTORS,
    as_right,
    left_dtype,
    multiply_add,
    rows_at_a_time,
    transposed,
)
from minivllm.cpu.sharing import shared_range

weigh = exp_kernel(VECTORS)
KEYS = 96  # of a block of scores, which stays in the first cache; any tile's rows divide it
WORTH_SHARING = 2**21
"""Multiply-adds that are worth several threads: some 50 microseconds of work."""
_LEAST = np.float32(-1e30)  # less than any score; inf - inf would be NaN


def prefill(inputs: LoopInputs, rows: RaggedRows, is_causal: bool = True) -> None:
    """Fill in the attention and the lse of sequences' newest rows, many of each.

    Args:
        is_causal: False: every row sees every key.
    """
    num_threads = torch.get_num_threads()
    num_kv_heads = inputs.key_cache.shape[2]
    num_parts = num_threads // gcd(num_threads, num_kv_heads)
    like: np.ndarray = np.empty(0, left_dtype(inputs.query, inputs.key_cache))
    numbers, starts, block_table, seq_lens = rows.arrays
    _prefill(
        inputs.work(rows),
        inputs,
        numbers,
        starts,
        block_table,
        seq_lens,
        is_causal,
        num_parts,
        like,
    )


@parallel_kernel(WORTH_SHARING)
def _prefill(share, inputs, rows, starts, block_table, seq_lens, is_causal, num_parts, like):
    """Paged prefill; each thread has the same number of KV heads of each sequence, or parts of one.

    Keys and values are multiplied as elements of the dtype of ``like``, which is empty.
    """
    output, lse, query, query_stride, key_cache, value_cache, scale, window, _, _ = inputs
    num_seqs, num_kv_heads = len(seq_lens), key_cache.shape[2]
    group, head_dim = output.shape[1] // num_kv_heads, output.shape[2]
    tile = rows_at_a_time(like)
    depth = _padded(head_dim, max(tile, WIDTH))
    for task in shared_range(share, num_parts * num_kv_heads * num_seqs):
        seq, part = task % num_seqs, task // num_seqs % num_parts
        kv_head = task // num_seqs // num_parts
        mine = rows[starts[seq] : starts[seq + 1]]
        num_lanes, end = len(mine) * group, seq_lens[seq]
        computed = end - len(mine) if is_causal else end - 1  # the first row's position
        first_key = max(0, computed + 1 - window)
        # The last block of keys may begin anywhere (windows), so that its padding goes further.
        room = _padded(end - first_key, tile) + tile
        keys, rows_of_values = aligned(room, depth, like.dtype), aligned(room, depth, like.dtype)
        _gather(
            keys,
            key_cache,
            block_table[seq],
            first=first_key,
            end=end,
            kv_head=kv_head,
            head_dim=head_dim,
        )
        _gather(
            rows_of_values,
            value_cache,
            block_table[seq],
            first=first_key,
            end=end,
            kv_head=kv_head,
            head_dim=head_dim,
        )
        key_scales = _scales(inputs.key_scales, block_table[seq], first_key, end, kv_head)
        value_scales = _scales(inputs.value_scales, block_table[seq], first_key, end, kv_head)
        values = transposed(rows_of_values)
        by_row = aligned(LANES, depth, np.float32)  # a query or an answer a row, not a lane
        queries, sums = aligned(depth, LANES, np.float32), aligned(depth, LANES, np.float32)
        scores = aligned(KEYS, LANES, np.float32)
        most, total = np.empty(LANES, np.float32), np.empty(LANES, np.float32)
        less = np.empty(LANES, np.float32)
        begins = np.empty(LANES, np.int32)  # of the keys that each lane sees
        ends = np.empty(LANES, np.int32)
        for first in range(part * LANES, num_lanes, num_parts * LANES):
            by_row[:, head_dim:] = 0
            for lane in range(LANES):  # those past the last row repeat its limits
                i = min(first + lane, num_lanes - 1)
                position = computed + i // group if is_causal else computed
                ends[lane] = position + 1 - first_key
                begins[lane] = max(0, position + 1 - window) - first_key
                at = mine[i // group] * query_stride + (kv_head * group + i % group) * head_dim
                for d in range(head_dim):
                    by_row[lane, d] = widen(query[at + d])
            turn(queries, by_row)
            as_right(queries, depth, keys)
            _attend_tile(
                sums,
                most,
                total,
                less=less,
                scores=scores,
                queries=queries,
                keys=keys,
                values=values,
                begins=begins,
                ends=ends,
                scale=scale,
                key_scales=key_scales,
                value_scales=value_scales,
            )
            turn(by_row, sums)
            for lane in range(min(LANES, num_lanes - first)):
                i = first + lane
                row, head = mine[i // group], kv_head * group + i % group
                lse[row, head] = most[lane] * scale + np.log(total[lane])
                share = np.float32(1) / total[lane]
                for d in range(head_dim):
                    output[row, head, d] = narrow(by_row[lane, d] * share, output)


@kernel
def _gather(numbers, cache, block_table, first, end, kv_head, head_dim):
    """Copy K or V of a KV head, positions ``[first, end)``, into contiguous rows; zeros behind."""
    block_size = cache.shape[1]
    numbers[:, head_dim:] = 0
    numbers[end - first :] = 0
    for b in range(first // block_size, (end - 1) // block_size + 1):
        block, start = cache[block_table[b]], b * block_size
        for position in range(max(first, start), min(end, start + block_size)):
            keys, row = block[position - start, kv_head], numbers[position - first]
            for d in range(head_dim):
                row[d] = narrow(widen(keys[d]), numbers)


@kernel
def _scales(scales, block_table, first, end, kv_head):
    """Scales of the positions ``[first, end)`` in ``[num_blocks, block_size, num_kv_heads]``.

    None, if there are no scales.
    """
    block_size = scales.shape[1]
    found = np.empty(end - first if block_size else 0, np.float32)
    for i in range(len(found)):
        block, slot = block_table[(first + i) // block_size], (first + i) % block_size
        found[i] = scales[block, slot, kv_head]
    return found


@kernel
def _attend_tile(
    sums, most, total, less, scores, queries, keys, values, begins, ends, scale, key_scales,
    value_scales,
):  # fmt: skip
    """Flash attention of one query a lane: block of keys after block of keys, each seen once.

    Fills in the sum of the values ``[depth, LANES]``, each with its weight, e to the score less the
    largest so far, the largest score, and the sum of the weights. The scores of lane l are those of
    the keys ``[begins[l], ends[l])``; later lanes see later ones. Scores and weights of keys and
    values of 8 bits are multiplied by the scales of these; empty: there are none.
    """
    depth, tile = keys.shape[1], rows_at_a_time(keys)
    sums[:] = 0
    most[:] = _LEAST
    total[:] = 0
    for begin in range(begins[0], ends[-1], KEYS):
        size = min(KEYS, ends[-1] - begin)
        padded = _padded(size, tile)
        # 1. The scores: keys times queries.
        multiply_add(scores, keys[begin:], queries, padded, depth, accumulate=False)
        _multiply_rows(scores, key_scales[begin : begin + size])
        seen_by_all = ends[0] - begin if begin >= begins[-1] else 0  # the keys before
        for j in range(max(0, seen_by_all), padded):
            row, key = scores[j], begin + j
            for lane in range(LANES):
                seen = begins[lane] <= key and key < ends[lane]
                row[lane] = row[lane] if seen else np.float32(-np.inf)
        # 2. The largest so far. Four keys at a time: what is read and written for each is so less
        #    often.
        for lane in range(LANES):
            less[lane] = most[lane]
        for j in range(0, padded, 4):
            s0, s1, s2, s3 = scores[j], scores[j + 1], scores[j + 2], scores[j + 3]
            for lane in range(LANES):
                a, b = _larger(s0[lane], s1[lane]), _larger(s2[lane], s3[lane])
                most[lane] = _larger(most[lane], _larger(a, b))
        # 3. What is there already weighs less by as much as the largest has grown.
        for lane in range(LANES):
            less[lane] = exp((less[lane] - most[lane]) * scale)
            total[lane] *= less[lane]
        for d in range(depth):
            row = sums[d]
            for lane in range(LANES):
                row[lane] *= less[lane]
        # 4. The weights, and their sum.
        weigh(scores, padded, most, scale, total)
        # 5. Values times weights.
        _multiply_rows(scores, value_scales[begin : begin + size])
        as_right(scores, padded, keys)
        multiply_add(sums, values[:, begin:], scores, depth, padded, accumulate=True)


@kernel
def _multiply_rows(numbers, factors):
    for j in range(len(factors)):
        row, factor = numbers[j], factors[j]
        for lane in range(LANES):
            row[lane] *= factor


@kernel
def _padded(size, step):
    return -(-size // step) * step


@kernel
def _larger(a, b):
    """max() as one instruction; Python's has extra branches for NaN."""
    return a if a > b else b
