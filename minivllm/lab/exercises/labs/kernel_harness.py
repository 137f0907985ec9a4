"""Kernel harness: a decode kernel with one part taken out, and that part's solution. Needs Triton.

It reads K and V through a block table, a program per sequence and head, like ``paged_decode``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def online_softmax(highest, total, summed, scores, value):
    new_highest = tl.maximum(highest, tl.max(scores, 1))
    base = tl.where(new_highest == float("-inf"), 0.0, new_highest)  # -inf - -inf is a NaN
    weights = tl.exp(scores - base[:, None])
    shrink = tl.exp(highest - base)
    total = total * shrink + tl.sum(weights, 1)
    summed = summed * shrink[:, None] + tl.dot(weights, value)
    return new_highest, total, summed


@triton.jit
def _attend(
    out, query, key_cache, value_cache, table, seq_len, window, PART: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row, lane = tl.arange(0, ROWS), tl.arange(0, LANES)
    q = tl.load(query + row[:, None] * LANES + lane[None, :])
    highest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    summed = tl.zeros([ROWS, LANES], tl.float32)
    for start in range(0, seq_len, TILE):
        position = start + tl.arange(0, TILE)
        exists = position < seq_len
        block = tl.load(table + position // BLOCK_SIZE, mask=exists, other=0)
        slot = block * BLOCK_SIZE + position % BLOCK_SIZE
        offset = slot[:, None] * LANES + lane[None, :]
        key = tl.load(key_cache + offset, mask=exists[:, None], other=0.0)
        value = tl.load(value_cache + offset, mask=exists[:, None], other=0.0)
        visible = exists & (position >= seq_len - window)
        scores = tl.where(visible[None, :], tl.dot(q, tl.trans(key)), float("-inf"))
        highest, total, summed = PART(highest, total, summed, scores, value)
    tl.store(out + row[:, None] * LANES + lane[None, :], summed / total[:, None])


def attend(part, query, key_cache, value_cache, table, seq_len: int, window: int) -> torch.Tensor:
    """Attention of ``[16, 16]`` query rows over one sequence, with ``part`` for every tile."""
    out = torch.empty_like(query)
    _attend[(1,)](
        out, query, key_cache, value_cache, table, seq_len, window, PART=part,
        BLOCK_SIZE=key_cache.shape[1], ROWS=16, LANES=16, TILE=16,
    )  # fmt: skip
    return out
