"""Kernel harness: a decode kernel with one part taken out, and that part's solution. Needs Triton.

It reads K and V through a block table, a program per sequence and head, like ``paged_decode``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def online_softmax(m_i, l_i, acc, scores, value):
    m_new = tl.maximum(m_i, tl.max(scores, 1))
    m_finite = tl.where(m_new == float("-inf"), 0.0, m_new)  # -inf - -inf is a NaN
    p = tl.exp(scores - m_finite[:, None])
    alpha = tl.exp(m_i - m_finite)
    l_i = l_i * alpha + tl.sum(p, 1)
    acc = acc * alpha[:, None] + tl.dot(p, value)
    return m_new, l_i, acc


@triton.jit
def _attend(
    out, query, key_cache, value_cache, table, seq_len, window, PART: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_M: tl.constexpr, HEAD_DIM_PADDED: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, BLOCK_M)
    lane = tl.arange(0, HEAD_DIM_PADDED)
    q = tl.load(query + row[:, None] * HEAD_DIM_PADDED + lane[None, :])
    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM_PADDED], tl.float32)
    for start in range(0, seq_len, BLOCK_N):
        position = start + tl.arange(0, BLOCK_N)
        exists = position < seq_len
        block = tl.load(table + position // BLOCK_SIZE, mask=exists, other=0)
        slot = block * BLOCK_SIZE + position % BLOCK_SIZE
        offset = slot[:, None] * HEAD_DIM_PADDED + lane[None, :]
        key = tl.load(key_cache + offset, mask=exists[:, None], other=0.0)
        value = tl.load(value_cache + offset, mask=exists[:, None], other=0.0)
        visible = exists & (position >= seq_len - window)
        scores = tl.where(visible[None, :], tl.dot(q, tl.trans(key)), float("-inf"))
        m_i, l_i, acc = PART(m_i, l_i, acc, scores, value)
    tl.store(out + row[:, None] * HEAD_DIM_PADDED + lane[None, :], acc / l_i[:, None])


def attend(part, query, key_cache, value_cache, table, seq_len: int, window: int) -> torch.Tensor:
    """Attention of ``[16, 16]`` query rows over one sequence, with ``part`` for every tile."""
    out = torch.empty_like(query)
    _attend[(1,)](
        out, query, key_cache, value_cache, table, seq_len, window, PART=part,
        BLOCK_SIZE=key_cache.shape[1], BLOCK_M=16, HEAD_DIM_PADDED=16, BLOCK_N=16,
    )  # fmt: skip
    return out
