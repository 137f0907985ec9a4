"""Fused elementwise operations for a CPU, each a loop compiled by numba.

torch needs several calls and as many passes over the elements, which for a batch of decodes cost
more than the arithmetic. Tests hold each to its definition in ``models/ops.py``.
"""

from __future__ import annotations

import numpy as np
import torch

from minivllm.cpu.compiled import (
    exp,
    flat,
    kernel,
    narrow,
    parallel_kernel,
    part_of_kernel,
    widen,
)
from minivllm.cpu.sharing import shared_range
from minivllm.utils.tensors import as_numpy

DTYPES = (torch.float32, torch.bfloat16)
WORTH_SHARING = 2**17  # elements that are worth several threads: some 30 us of work
ONE = np.float32(1)  # a plain 1 would make float64 of what is added to it, at half the speed


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    rows = x.reshape(-1, x.size(-1))
    output = torch.empty_like(rows)
    rms_norm_loop(x.numel(), as_numpy(output), as_numpy(rows), as_numpy(weight), np.float32(eps))
    return output.view_as(x)


@parallel_kernel(WORTH_SHARING)
def rms_norm_loop(share, output, x, weight, eps):
    for i in shared_range(share, len(x)):
        _norm_row(output[i], x[i], weight, eps)


@part_of_kernel
def _norm_row(output, row, weight, eps):
    squares = np.float32(0)
    for d in range(len(row)):
        squares += widen(row[d]) * widen(row[d])
    scale = ONE / np.sqrt(squares / np.float32(len(row)) + eps)
    for d in range(len(row)):
        output[d] = narrow(widen(row[d]) * scale * widen(weight[d]), output)


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    output = torch.empty_like(residual)
    add_rms_norm_loop(
        x.numel(),
        as_numpy(output), as_numpy(residual), as_numpy(x), as_numpy(weight), np.float32(eps),
    )  # fmt: skip
    return output


@parallel_kernel(WORTH_SHARING)
def add_rms_norm_loop(share, output, residual, x, weight, eps):
    for i in shared_range(share, len(x)):
        row = residual[i]
        for d in range(len(row)):
            row[d] = narrow(widen(row[d]) + widen(x[i, d]), row)
        _norm_row(output[i], row, weight, eps)


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    output = torch.empty(len(x), x.shape[1] // 2, dtype=x.dtype)
    silu_and_mul_loop(x.numel(), as_numpy(output), as_numpy(x))
    return output


@parallel_kernel(WORTH_SHARING)
def silu_and_mul_loop(share, output, x):
    size = output.shape[1]
    for i in shared_range(share, len(x)):
        for d in range(size):
            gate = widen(x[i, d])
            small = exp(-abs(gate))  # sigmoid(-|gate|) is small / (1 + small): nothing overflows
            part = gate if gate > 0 else gate * small
            output[i, d] = narrow(part / (ONE + small) * widen(x[i, size + d]), output)


def rotary_embedding(
    query: torch.Tensor, key: torch.Tensor, cos_sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    query_numbers, q_stride = flat(query)
    key_numbers, k_stride = flat(key)
    rotary_embedding_loop(
        query.numel(),
        query_numbers, q_stride, key_numbers, k_stride, as_numpy(cos_sin),
        query.shape[1], key.shape[1], query.shape[2],
    )  # fmt: skip
    return query, key


@parallel_kernel(WORTH_SHARING)
def rotary_embedding_loop(
    share, query, q_stride, key, k_stride, cos_sin, num_heads, num_kv_heads, head_dim
):
    for i in shared_range(share, len(cos_sin)):
        begin = i * q_stride
        _rotate(query[begin : begin + num_heads * head_dim], cos_sin[i], head_dim)
        begin = i * k_stride
        _rotate(key[begin : begin + num_kv_heads * head_dim], cos_sin[i], head_dim)


@kernel
def _rotate(heads, cos_sin, head_dim):
    half = head_dim // 2
    for begin in range(0, len(heads), head_dim):
        first, second = heads[begin : begin + half], heads[begin + half : begin + head_dim]
        for d in range(half):
            a, b = widen(first[d]), widen(second[d])
            cos, sin = widen(cos_sin[0, d]), widen(cos_sin[1, half + d])
            first[d] = narrow(a * cos - b * sin, first)
            second[d] = narrow(b * cos + a * sin, second)


@parallel_kernel(WORTH_SHARING)
def merge_attn_states_loop(share, output, lse, rows, other, other_lse, other_rows):
    for i in shared_range(share, len(rows)):
        row, other_row = rows[i], other_rows[i]
        for h in range(output.shape[1]):
            more = other_lse[other_row, h] - lse[row, h]
            small = exp(-abs(more))  # e^less / e^larger
            share = (ONE if more > 0 else small) / (ONE + small)  # the other part's
            lse[row, h] = max(lse[row, h], other_lse[other_row, h]) + np.log1p(small)
            for d in range(output.shape[2]):
                mine = widen(output[row, h, d])
                theirs = widen(other[other_row, h, d])
                output[row, h, d] = narrow(mine + share * (theirs - mine), output)
