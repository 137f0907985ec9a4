"""Paged decode in numba: the newest rows of many sequences, each of which reads its own keys.

Blocks are read where they are, through the block table. A few queries meet each key, so that what
counts is how the keys are read: a vector of them at a time, transposed, a key in each SIMD lane.
(vLLM: vllm/v1/attention/backends/cpu_attn.py)
(notebook A3)
"""

from __future__ import annotations

import numpy as np
import torch

from minivllm.cpu.attention.inputs import LoopInputs, RaggedRows
from minivllm.cpu.compiled import narrow, parallel_kernel, part_of_kernel, widen
from minivllm.cpu.gemm.cache_lines import aligned, prefetch
from minivllm.cpu.gemm.microkernel import WIDTH, exp_kernel, micro_kernel, transpose
from minivllm.cpu.sharing import shared_range

MOST_ROWS = 8  # of one sequence that are decoded; with more of them prefill is faster
WORTH_SHARING = 2**19
"""Multiply-adds that are worth several threads: some 100 microseconds of work. On a busy machine
waking a thread can take longer than that."""
ROWS, LANES = 4, 2 * WIDTH  # eight sums at once, which is as many as hide that each takes a while
AHEAD = 2  # vectors of keys, or blocks of values, that are asked for before they are read
_wide, _narrow, weigh = micro_kernel(ROWS, 2), micro_kernel(ROWS, 1), exp_kernel(2)


def most_rows(key_cache: torch.Tensor | np.ndarray) -> int:
    """Maximum number of rows of a sequence that are decoded, with this cache.

    Vectors of elements and of keys must fit into heads and blocks: where they do not, it is 0.
    """
    _, block_size, _, head_dim = key_cache.shape
    return MOST_ROWS if block_size % WIDTH == head_dim % WIDTH == 0 else 0


def decode(inputs: LoopInputs, rows: RaggedRows) -> None:
    """Fill in the attention and the lse of sequences' newest rows, a few of each."""
    numbers, starts, block_table, seq_lens = rows.arrays
    _decode(inputs.work(rows), inputs, numbers, starts, block_table, seq_lens)


@parallel_kernel(WORTH_SHARING)
def _decode(share, inputs, rows, starts, block_table, seq_lens):
    output, lse, query, query_stride, key_cache, _, scale, _, _, _ = inputs
    num_kv_heads = key_cache.shape[2]
    group, head_dim = output.shape[1] // num_kv_heads, output.shape[2]
    for task in shared_range(share, len(seq_lens) * num_kv_heads):  # each on any thread
        seq, kv_head = task // num_kv_heads, task % num_kv_heads
        first, num_rows = rows[starts[seq]], starts[seq + 1] - starts[seq]
        # side by side and in float32, as the products want them; as many as their rows
        num_queries = num_rows * group
        padded = -(-num_queries // ROWS) * ROWS
        queries = np.zeros((padded, head_dim), np.float32)
        for i in range(num_queries):
            at = (first + i // group) * query_stride + (kv_head * group + i % group) * head_dim
            for d in range(head_dim):
                queries[i, d] = widen(query[at + d])
        sums = np.zeros((padded, head_dim), np.float32)
        most, total = np.empty((2, num_queries), np.float32)
        _paged_decode(
            sums,
            most,
            total,
            queries=queries,
            inputs=inputs,
            block_table=block_table[seq],
            end=seq_lens[seq],
            num_rows=num_rows,
            kv_head=kv_head,
        )
        for i in range(num_queries):
            row, head = first + i // group, kv_head * group + i % group
            lse[row, head] = most[i] * scale + np.log(total[i])
            share = np.float32(1) / total[i]
            for d in range(head_dim):
                output[row, head, d] = narrow(sums[i, d] * share, output)


@part_of_kernel
def _paged_decode(sums, most, total, queries, inputs, block_table, end, num_rows, kv_head):
    """Paged decode of one sequence of length ``end``, for the query heads of one KV head.

    Adds up the values, each times e to its score less the query's largest score, and fills in that
    largest and the sum of those weights. In float32, whatever the cache is in.
    """
    _, _, _, _, key_cache, value_cache, scale, window, key_scales, value_scales = inputs
    num_padded, head_dim = queries.shape
    block_size = key_cache.shape[1]
    begin = max(0, end - num_rows + 1 - window)  # the first key that a row sees, and its block
    first = begin // block_size
    blocks = block_table[first : (end - 1) // block_size + 1]
    begin -= first * block_size  # from here on positions are counted from that block's beginning
    end -= first * block_size
    num_keys = len(blocks) * block_size
    length = -(-num_keys // LANES) * LANES
    weights = aligned(num_padded, length, np.float32)

    # 1. The scores: queries times keys, of which a vector at a time is transposed.
    keys = aligned(head_dim, LANES, np.float32)
    keys[:] = 0
    for at in range(0, length, LANES):
        for key in range(at, min(at + LANES, num_keys), WIDTH):
            later = min(key + AHEAD * WIDTH, num_keys - WIDTH)
            after = key_cache[blocks[later // block_size], later % block_size :, kv_head]
            prefetch(after, WIDTH, head_dim)
            block, slot = blocks[key // block_size], key % block_size
            for d in range(0, head_dim, WIDTH):
                transpose(keys[d:, key - at :], key_cache[block, slot:, kv_head, d:])
        for q in range(0, num_padded, ROWS):
            _wide(weights[q:, at:], queries[q:], keys, head_dim, False)
    _multiply_columns(weights, key_scales, blocks, kv_head)
    # 2. What each key weighs, of those that a row sees; the rest of its blocks weighs nothing.
    group = len(most) // num_rows
    lane_largest = np.empty(LANES, np.float32)
    lane_sums = np.empty(LANES, np.float32)
    for i in range(len(most)):
        stop = end - (num_rows - 1 - i // group)
        start = max(0, stop - window)
        most[i], total[i] = _weigh(
            weights[i], start, stop, scale=scale, largest=lane_largest, sums=lane_sums
        )
    _multiply_columns(weights, value_scales, blocks, kv_head)
    # 3. The sum of the values, each with its weight.
    whole = head_dim // LANES * LANES
    for b in range(len(blocks)):
        at = max(begin, b * block_size)
        slot = at - b * block_size
        size = min(end - at, block_size - slot)  # slots before and behind may hold anything
        values = value_cache[blocks[b], slot:, kv_head]
        later = min(b + AHEAD, len(blocks) - 1)
        prefetch(value_cache[blocks[later], :, kv_head], block_size, head_dim)
        for q in range(0, num_padded, ROWS):
            for d in range(0, whole, LANES):
                _wide(sums[q:, d:], weights[q:, at:], values[:, d:], size, True)
            if whole < head_dim:
                _narrow(sums[q:, whole:], weights[q:, at:], values[:, whole:], size, True)


@part_of_kernel
def _multiply_columns(numbers, scales, blocks, kv_head):
    """Multiply each key's column by its scale in ``[num_blocks, block_size, num_kv_heads]``."""
    block_size = scales.shape[1]
    factors = np.empty(len(blocks) * block_size, np.float32)  # side by side; none of empty scales
    for b in range(len(blocks) if block_size else 0):
        for slot in range(block_size):
            factors[b * block_size + slot] = scales[blocks[b], slot, kv_head]
    for row in numbers:
        for i in range(len(factors)):
            row[i] *= factors[i]


@part_of_kernel
def _weigh(row, start, stop, scale, largest, sums):
    """Softmax weights: e to the scores in ``[start, stop)`` less the largest, in place; 0 outside.

    Returns the largest score, so that exp cannot overflow, and the sum. SIMD lanes compare in
    parallel, but one largest of all lanes is found one by one; so that is left for eight.
    """
    row[:start] = -np.inf
    row[stop:] = -np.inf
    largest[:] = -np.inf
    for begin in range(0, len(row), LANES):
        some = row[begin : begin + LANES]
        for lane in range(LANES):
            largest[lane] = max(largest[lane], some[lane])
    for begin in range(8, LANES, 8):
        for lane in range(8):
            largest[lane] = max(largest[lane], largest[begin + lane])
    most = largest[0]
    for lane in range(1, 8):
        most = max(most, largest[lane])
    largest[:] = most
    sums[:] = 0
    weigh(row.reshape(-1, LANES), len(row) // LANES, largest, scale, sums)
    row[:start] = 0
    row[stop:] = 0
    return most, sums.sum()
