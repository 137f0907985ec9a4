"""W4A16 in Triton: a product with weights of 4 bits, which become numbers in a program's registers.

Words are GPTQ's: eight neighbouring inputs of one output. A program takes a tile of rows and one of
outputs. A code less its zero is a small whole number, which 16 bits hold exactly, so that tensor
cores multiply it; a group's scale multiplies the sum, in float32. (Its twin:
``QuantizedLinearMethod.apply``. vLLM:
vllm/model_executor/kernels/linear/mixed_precision/triton_w4a16.py)

This file is imported only when it is used: triton need not be there.
(notebook 18b)
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

_COLUMNS = 64  # outputs of a tile


def w4a16(
    x: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """``x @ ((codes - zeros) * scales) + bias``, with float32 sums.

    Args:
        x: ``[num_tokens, input_size]``.
        words: int32 ``[input_size / 8, output_size]``.
        scales: ``[num_groups, output_size]``, of any float dtype; a group is a multiple of 16
            inputs.
        zeros: int8 as scales; None: all are 8.
        bias: ``[output_size]``, or None.

    Returns:
        ``[num_tokens, output_size]`` of x's dtype.
    """
    x = x.contiguous()
    num_tokens, depth = x.shape
    num_groups, width = scales.shape
    group_size = depth // num_groups
    y = torch.empty(num_tokens, width, dtype=x.dtype, device=x.device)
    rows = 16 if num_tokens <= 16 else 64
    # float32 is not multiplied on tensor cores, and what is multiplied at once is in registers
    block_k = math.gcd(group_size, 64 if x.element_size() == 2 else 16)
    _w4a16_kernel[(triton.cdiv(num_tokens, rows), triton.cdiv(width, _COLUMNS))](
        y, x, words, scales=scales, zeros=zeros, bias=bias, num_tokens=num_tokens,
        DEPTH=depth, WIDTH=width, GROUP=group_size,
        # The interpreter multiplies 16-bit floats as if they were integers.
        UPCAST=x.device.type == "cpu",
        BLOCK_M=rows, BLOCK_N=_COLUMNS, BLOCK_K=block_k,
    )  # fmt: skip
    return y


@triton.jit(do_not_specialize=["num_tokens"])
def _w4a16_kernel(
    y, x, words, scales, zeros, bias, num_tokens,
    DEPTH: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr, UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    real = row < num_tokens
    inside = column < WIDTH
    k = tl.arange(0, BLOCK_K)
    octet = tl.arange(0, BLOCK_K // 8)
    shift = tl.arange(0, 8) * 4
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(0, DEPTH, BLOCK_K):
        left = x + row[:, None] * DEPTH + (first + k)[None, :]
        left = tl.load(left, mask=real[:, None], other=0.0)
        if UPCAST:
            left = left.to(tl.float32)
        word = words + (first // 8 + octet)[:, None] * WIDTH + column[None, :]
        word = tl.load(word, mask=inside[None, :], other=0)
        code = tl.reshape(word[:, None, :] >> shift[None, :, None] & 15, [BLOCK_K, BLOCK_N])
        of_group = first // GROUP * WIDTH + column
        if zeros is None:
            code -= 8
        else:
            code -= tl.load(zeros + of_group, mask=inside, other=0).to(tl.int32)[None, :]
        scale = tl.load(scales + of_group, mask=inside, other=0.0).to(tl.float32)
        total += tl.dot(left, code.to(left.dtype), input_precision="ieee") * scale[None, :]
    if bias is not None:
        total += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)[None, :]
    to = y + row[:, None] * WIDTH + column[None, :]
    tl.store(to, total, mask=real[:, None] & inside[None, :])
