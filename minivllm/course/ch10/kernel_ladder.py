"""Kernel ladder: solutions of the kernels that notebook 10 asks for. Needs Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def copy(out, x, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + place, tl.load(x + place, mask=place < n), mask=place < n)


@triton.jit
def masked_add(out, x, y, present, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = place < n
    is_there = tl.load(present + place, mask=exists, other=0) != 0
    total = tl.load(x + place, mask=exists) + tl.load(y + place, mask=is_there, other=0.0)
    tl.store(out + place, total, mask=exists)


@triton.jit
def table_sum(out, cache, block_table, seq_len, BLOCK_SIZE: tl.constexpr):
    total = tl.zeros([BLOCK_SIZE], tl.float32)
    offset = tl.arange(0, BLOCK_SIZE)
    for index in range((seq_len + BLOCK_SIZE - 1) // BLOCK_SIZE):
        block = tl.load(block_table + index)
        exists = index * BLOCK_SIZE + offset < seq_len
        total += tl.load(cache + block * BLOCK_SIZE + offset, mask=exists, other=0.0)
    tl.store(out, tl.sum(total, 0))


@triton.jit
def row_softmax(out, x, num_columns, stride, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    exists = column < num_columns
    score = tl.load(x + row * stride + column, mask=exists, other=float("-inf"))
    p = tl.exp(score - tl.max(score, 0))
    tl.store(out + row * stride + column, p / tl.sum(p, 0), mask=exists)


@triton.jit
def decode_one(
    out, query, key_cache, value_cache, block_table, seq_len, scale,
    BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    lane, offset = tl.arange(0, HEAD_DIM), tl.arange(0, BLOCK_SIZE)
    q = tl.load(query + lane) * scale
    m_i, l_i = float("-inf"), 0.0
    acc = tl.zeros([HEAD_DIM], tl.float32)
    for index in range((seq_len + BLOCK_SIZE - 1) // BLOCK_SIZE):
        slot = tl.load(block_table + index) * BLOCK_SIZE + offset
        exists = index * BLOCK_SIZE + offset < seq_len
        place = slot[:, None] * HEAD_DIM + lane[None, :]
        key = tl.load(key_cache + place, mask=exists[:, None], other=0.0)
        value = tl.load(value_cache + place, mask=exists[:, None], other=0.0)
        score = tl.where(exists, tl.sum(q[None, :] * key, 1), float("-inf"))
        m_new = tl.maximum(m_i, tl.max(score, 0))
        p, alpha = tl.exp(score - m_new), tl.exp(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, 0)
        acc = acc * alpha + tl.sum(p[:, None] * value, 0)
        m_i = m_new
    tl.store(out + lane, acc / l_i)


@triton.jit
def decode(
    out, query, key_cache, value_cache, block_tables, seq_lens, scale, table_width,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):  # fmt: skip
    seq, head = tl.program_id(0), tl.program_id(1)
    kv_head = head // (NUM_HEADS // NUM_KV_HEADS)
    lane, offset = tl.arange(0, HEAD_DIM), tl.arange(0, BLOCK_SIZE)
    row = (seq * NUM_HEADS + head) * HEAD_DIM + lane
    q, seq_len = tl.load(query + row) * scale, tl.load(seq_lens + seq)
    m_i, l_i = float("-inf"), 0.0
    acc = tl.zeros([HEAD_DIM], tl.float32)
    for index in range((seq_len + BLOCK_SIZE - 1) // BLOCK_SIZE):
        block = tl.load(block_tables + seq * table_width + index)
        exists = index * BLOCK_SIZE + offset < seq_len
        slot = (block * BLOCK_SIZE + offset) * NUM_KV_HEADS + kv_head
        place = slot[:, None] * HEAD_DIM + lane[None, :]
        key = tl.load(key_cache + place, mask=exists[:, None], other=0.0)
        value = tl.load(value_cache + place, mask=exists[:, None], other=0.0)
        score = tl.where(exists, tl.sum(q[None, :] * key, 1), float("-inf"))
        m_new = tl.maximum(m_i, tl.max(score, 0))
        p, alpha = tl.exp(score - m_new), tl.exp(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, 0)
        acc = acc * alpha + tl.sum(p[:, None] * value, 0)
        m_i = m_new
    tl.store(out + row, acc / l_i)
