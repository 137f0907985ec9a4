"""Fused elementwise operations for a CPU: one call and one pass each. See ``minivllm.ops``."""

from __future__ import annotations

import numpy as np
import torch
from numba import prange

from minivllm.ops.compiled import as_numpy, exp, flat, kernel, narrow, use_threads, widen

WORTH_SHARING = 2**17  # numbers from which on several threads are woken: some 30 us of work


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    rows = x.reshape(-1, x.shape[-1])
    output = torch.empty_like(rows)
    use_threads(x.numel(), WORTH_SHARING)
    _rms_norm(as_numpy(output), as_numpy(rows), as_numpy(weight), np.float32(eps))
    return output.view(x.shape)


@kernel(parallel=True)
def _rms_norm(output, x, weight, eps):
    for i in prange(len(x)):
        _norm_row(output[i], x[i], weight, eps)


@kernel
def _norm_row(output, row, weight, eps):
    squares = np.float32(0)
    for d in range(len(row)):
        squares += widen(row[d]) * widen(row[d])
    scale = np.float32(1) / np.sqrt(squares / np.float32(len(row)) + eps)
    for d in range(len(row)):
        output[d] = narrow(widen(row[d]) * scale * widen(weight[d]), output)


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    output = torch.empty_like(residual)
    use_threads(x.numel(), WORTH_SHARING)
    _add_rms_norm(*map(as_numpy, (output, residual, x, weight)), np.float32(eps))
    return output


@kernel(parallel=True)
def _add_rms_norm(output, residual, x, weight, eps):
    for i in prange(len(x)):
        row = residual[i]
        for d in range(len(row)):
            row[d] = narrow(widen(row[d]) + widen(x[i, d]), row)
        _norm_row(output[i], row, weight, eps)


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    output = torch.empty(len(x), x.shape[1] // 2, dtype=x.dtype)
    use_threads(x.numel(), WORTH_SHARING)
    _silu_and_mul(as_numpy(output), as_numpy(x))
    return output


@kernel(parallel=True)
def _silu_and_mul(output, x):
    size = output.shape[1]
    for i in prange(len(x)):
        for d in range(size):
            gate = widen(x[i, d])
            small = exp(-abs(gate))  # sigmoid(-|gate|) is small / (1 + small): nothing overflows
            part = gate if gate > 0 else gate * small
            output[i, d] = narrow(part / (1 + small) * widen(x[i, size + d]), output)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    output = torch.empty(x.shape, dtype=x.dtype)
    use_threads(x.numel(), WORTH_SHARING)
    _rotate(as_numpy(output), *flat(x), as_numpy(cos), as_numpy(sin))
    return output


@kernel(parallel=True)
def _rotate(output, x, offset, stride, cos, sin):
    num_tokens, num_heads, head_dim = output.shape
    half = head_dim // 2
    for i in prange(num_tokens):
        for h in range(num_heads):
            begin = offset + i * stride + h * head_dim
            first, second = x[begin : begin + half], x[begin + half : begin + head_dim]
            for d in range(half):
                a, b = widen(first[d]), widen(second[d])
                turned = a * widen(cos[i, 0, d]) + b * widen(sin[i, 0, d])
                output[i, h, d] = narrow(turned, output)
                e = half + d
                turned = b * widen(cos[i, 0, e]) + a * widen(sin[i, 0, e])
                output[i, h, e] = narrow(turned, output)
