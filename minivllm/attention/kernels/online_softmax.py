"""Online softmax: attention over a range of a sequence, tile by tile, in one pass (notebook 10).

Softmax wants the largest score before the first exp. The *online* softmax does not wait: it keeps
the largest score **so far**, and whenever a tile brings a larger one, it scales what it has summed
up by ``exp(old - new)``. So a program keeps one tile in its fast memory, however long the context,
and never writes scores anywhere (Milakov and Gimelshein 2018; FlashAttention, Dao et al. 2022).

Names are FlashAttention's: ``m_i`` is the largest score so far, ``l_i`` the sum of exps under it,
``acc`` the sum of values with these exps as weights (``p``), and ``alpha`` the factor that scales
both sums when the maximum grows. ``BLOCK_M`` is the number of rows (query heads, of one token or
several), ``HEAD_DIM_PADDED`` the head's size as a power of two, ``BLOCK_N`` a tile's positions.
Each position asks the block table where it lives: tiles and blocks need not have the same size.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

NO_WINDOW = 2**30  # a window that reaches back beyond every sequence
LOG2_E = tl.constexpr(math.log2(math.e))  # hardware computes exp2, so exp(x) is exp2(x * LOG2_E)


def attend_range_torch(
    query, row_at, key_cache, value_cache, table, kv_head, begin, end, window, scale, tile
):
    """PyTorch reference of ``attend_range``; arguments and results are the same, in float32."""
    block_size = key_cache.shape[1]
    query, row_at = query.float(), row_at.unsqueeze(1)
    m_i = torch.full((len(query),), -torch.inf)
    l_i = torch.zeros(len(query))
    acc = torch.zeros_like(query)
    for start in range(begin, end, tile):
        position = torch.arange(start, min(start + tile, end))
        slot = table[position // block_size].long() * block_size + position % block_size
        key = key_cache.flatten(0, 1)[slot, kv_head].float()
        value = value_cache.flatten(0, 1)[slot, kv_head].float()
        visible = (position <= row_at) & (position > row_at - window)
        scores = (query @ key.T * scale).masked_fill(~visible, -torch.inf)
        m_new = torch.maximum(m_i, scores.amax(1))
        m_finite = m_new.masked_fill(m_new == -torch.inf, 0.0)
        p = torch.exp(scores - m_finite.unsqueeze(1))
        alpha = torch.exp(m_i - m_finite)
        l_i = l_i * alpha + p.sum(1)
        acc = acc * alpha.unsqueeze(1) + p @ value
        m_i = m_new
    l_i = l_i.masked_fill(l_i == 0, 1.0)
    return acc / l_i.unsqueeze(1), m_i + l_i.log()


@triton.jit
def attend_range(
    query, row_at, key_cache, value_cache, table, kv_head, begin, end, window, scale,
    BLOCK_SIZE: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr, HEAD_DIM_PADDED: tl.constexpr, BLOCK_N: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    """Attention of some rows over the positions ``begin`` to ``end`` of one sequence.

    Args:
        query: ``[BLOCK_M, HEAD_DIM_PADDED]``, in registers. Lanes beyond ``HEAD_DIM`` are 0.
        row_at: ``[BLOCK_M]``, each row's position; it sees ``row_at - window + 1`` to ``row_at``.
        key_cache, value_cache: pointers to ``[num_blocks, BLOCK_SIZE, KV_HEADS, HEAD_DIM]``.
        table: pointer to the sequence's row of the block table.
        kv_head: which head of K and V to read.
        begin, end: positions; all of them are in the cache.
        UPCAST: multiply in float32, not in the cache's type (see ``launch.py``).

    Returns:
        ``[BLOCK_M, HEAD_DIM_PADDED]`` float32, and each row's log-sum-exp (lse), ``[BLOCK_M]``,
        which merges results over different ranges. A row that sees nothing gets 0 and -inf.
    """
    lane = tl.arange(0, HEAD_DIM_PADDED)
    scale = scale * LOG2_E
    seen_from = tl.max(row_at) - window + 1  # every row sees all positions from here
    seen_until = tl.minimum(end, tl.min(row_at) + 1)  # to here
    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM_PADDED], tl.float32)
    for start in range(begin, end, BLOCK_N):
        # 1. Where do these positions live? The table says it block by block.
        position = start + tl.arange(0, BLOCK_N)
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
        if (start < seen_from) | (start + BLOCK_N > seen_until):
            ahead = row_at[:, None] - position[None, :]
            visible = exists[None, :] & (ahead >= 0) & (ahead < window)
            scores = tl.where(visible, scores, float("-inf"))

        # 4. A larger score may have come: scale what was summed up under the old one. Where
        #    nothing has been visible yet both are -inf, and -inf - -inf would be a NaN: take 0.
        m_new = tl.maximum(m_i, tl.max(scores, 1) * scale)
        m_finite = tl.where(m_new == float("-inf"), 0.0, m_new)
        p = tl.exp2(scores * scale - m_finite[:, None])
        alpha = tl.exp2(m_i - m_finite)
        l_i = l_i * alpha + tl.sum(p, 1)
        pv = tl.dot(p.to(value.dtype), value, input_precision="ieee")
        acc = acc * alpha[:, None] + pv
        m_i = m_new
    l_i = tl.where(l_i == 0, 1.0, l_i)
    return acc / l_i[:, None], (m_i + tl.log2(l_i)) / LOG2_E
