"""The loop inside every attention kernel: a range of a sequence, tile by tile, in one pass.

Softmax wants the largest score before the first exp. The *online* softmax does not wait: it keeps
the largest score **so far**, and whenever a tile brings a larger one, it shrinks what it has summed
up by ``exp(old - new)``. So a program keeps one tile in its fast memory, however long the context,
and never writes scores anywhere (Milakov and Gimelshein 2018; FlashAttention, Dao et al. 2022).

A tile is ``TILE`` positions of the sequence, and each position asks the block table where it lives:
tiles and blocks need not have the same size.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

NO_WINDOW = 2**30  # a window that reaches back beyond every sequence
LOG2_E = tl.constexpr(math.log2(math.e))  # a GPU has no exp, it has exp2: exp(x) is exp2(x * this)


def attend_range_torch(
    query, row_at, key_cache, value_cache, table, kv_head, begin, end, window, scale, tile
):
    """The twin of ``attend_range``; arguments and results are the same, in float32."""
    block_size = key_cache.shape[1]
    query, row_at = query.float(), row_at.unsqueeze(1)
    highest = torch.full((len(query),), -torch.inf)
    total = torch.zeros(len(query))
    summed = torch.zeros_like(query)
    for start in range(begin, end, tile):
        position = torch.arange(start, min(start + tile, end))
        slot = table[position // block_size].long() * block_size + position % block_size
        key = key_cache.flatten(0, 1)[slot, kv_head].float()
        value = value_cache.flatten(0, 1)[slot, kv_head].float()
        visible = (position <= row_at) & (position > row_at - window)
        scores = (query @ key.T * scale).masked_fill(~visible, -torch.inf)
        new_highest = torch.maximum(highest, scores.amax(1))
        base = new_highest.masked_fill(new_highest == -torch.inf, 0.0)
        weights = torch.exp(scores - base.unsqueeze(1))
        shrink = torch.exp(highest - base)
        total = total * shrink + weights.sum(1)
        summed = summed * shrink.unsqueeze(1) + weights @ value
        highest = new_highest
    total = total.masked_fill(total == 0, 1.0)
    return summed / total.unsqueeze(1), highest + total.log()


@triton.jit
def attend_range(
    query, row_at, key_cache, value_cache, table, kv_head, begin, end, window, scale,
    BLOCK_SIZE: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr, LANES: tl.constexpr, TILE: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Attention of some rows over the positions ``begin`` to ``end`` of one sequence.

    Args:
        query: ``[ROWS, LANES]``, in registers. Lanes beyond ``HEAD_DIM`` are 0.
        row_at: ``[ROWS]``, the position of each row: it sees ``row_at - window < p <= row_at``.
        key_cache, value_cache: pointers to ``[num_blocks, BLOCK_SIZE, KV_HEADS, HEAD_DIM]``.
        table: pointer to the sequence's row of the block table.
        kv_head: which head of K and V to read.
        begin, end: positions; all of them are in the cache.
        UPCAST: multiply in float32, not in the cache's type (see ``launch.py``).

    Returns:
        ``[ROWS, LANES]`` float32, and the log of each row's sum of exps, ``[ROWS]``: with it,
        results over different ranges can be merged. A row that sees nothing gets 0 and -inf.
    """
    lane = tl.arange(0, LANES)
    scale = scale * LOG2_E
    seen_from = tl.max(row_at) - window + 1  # every row sees all positions from here
    seen_until = tl.minimum(end, tl.min(row_at) + 1)  # to here
    highest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    summed = tl.zeros([ROWS, LANES], tl.float32)
    for start in range(begin, end, TILE):
        # 1. Where do these positions live? The table says it block by block.
        position = start + tl.arange(0, TILE)
        exists = position < end
        block = tl.load(table + position // BLOCK_SIZE, mask=exists, other=0)
        slot = block.to(tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE
        offset = (slot * KV_HEADS + kv_head)[:, None] * HEAD_DIM + lane[None, :]

        # 2. Load keys and values. What is masked is not read and becomes 0, so that garbage in
        #    unused slots cannot get in: a NaN times a weight of 0 would still be a NaN.
        readable = exists[:, None] & (lane < HEAD_DIM)[None, :]
        key = tl.load(key_cache + offset, mask=readable, other=0.0)
        value = tl.load(value_cache + offset, mask=readable, other=0.0)
        if UPCAST:
            key, value = key.to(tl.float32), value.to(tl.float32)

        # 3. Scores; -inf where a row may not look: the future, or beyond its window. Most tiles
        #    are seen whole by all rows and need no look at every score.
        #    "ieee": a float32 product in full, where the tensor cores would round to 10 bits.
        scores = tl.dot(query, tl.trans(key), input_precision="ieee")
        if (start < seen_from) | (start + TILE > seen_until):
            ahead = row_at[:, None] - position[None, :]
            visible = exists[None, :] & (ahead >= 0) & (ahead < window)
            scores = tl.where(visible, scores, float("-inf"))

        # 4. A larger score may have come: shrink what has been summed up under the old one. Where
        #    nothing has been visible yet both are -inf, and -inf - -inf would be a NaN: take 0.
        new_highest = tl.maximum(highest, tl.max(scores, 1) * scale)
        base = tl.where(new_highest == float("-inf"), 0.0, new_highest)
        weights = tl.exp2(scores * scale - base[:, None])
        shrink = tl.exp2(highest - base)
        total = total * shrink + tl.sum(weights, 1)
        weighted = tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        summed = summed * shrink[:, None] + weighted
        highest = new_highest
    total = tl.where(total == 0, 1.0, total)
    return summed / total[:, None], (highest + tl.log2(total)) / LOG2_E
