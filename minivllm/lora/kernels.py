"""Triton kernels of adapters: a shrink and an expand for all adapters of a step at once.

Rows are sorted by slot, and a program takes a tile of rows of one adapter
(``LoRAMetadata.tiles``) and a tile of columns. A slot's room beyond its adapter's rank is zero, so
the kernels need not know the rank. (Their twin: ``LoRALinearMethod.add_adapters``. vLLM:
lora_shrink_op.py, lora_expand_op.py in vllm/lora/ops/triton_ops/)

This file is imported only when it is used: triton need not be there.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

from minivllm.lora.metadata import TILE_ROWS, LoRAMetadata
from minivllm.utils.tensors import make_tensor

RANK_TILE = 16  # numbers of a shrunk row that a program takes at a time: see layers.RANK_STEP
SHRINK_DEPTH = 64
EXPAND_COLUMNS = 64


def lora_shrink(x: torch.Tensor, a: torch.Tensor, metadata: LoRAMetadata) -> torch.Tensor:
    """Shrink the rows that have an adapter, by its matrix A.

    Args:
        x: ``[num_tokens, input_size]``.
        a: ``[max_loras, input_size, num_parts * max_rank]``, max_rank a multiple of ``RANK_TILE``.
        metadata: which rows have which slot.

    Returns:
        float32 ``[num sorted rows, num_parts * max_rank]``.
    """
    x = x.contiguous()
    _, depth, width = a.shape
    shrunk = torch.empty(len(metadata.rows), width, dtype=torch.float32, device=x.device)
    # The interpreter multiplies 16-bit floats as if they were integers.
    upcast = x.dtype != a.dtype or x.device.type == "cpu"
    _lora_shrink_kernel[(len(metadata.tiles), width // RANK_TILE)](
        shrunk, x, a, metadata.rows, metadata.tiles,
        DEPTH=depth, WIDTH=width, UPCAST=upcast,
        BLOCK_M=TILE_ROWS, BLOCK_N=RANK_TILE, BLOCK_K=SHRINK_DEPTH,
    )  # fmt: skip
    return shrunk


def lora_expand(
    y: torch.Tensor,
    shrunk: torch.Tensor,
    b: torch.Tensor,
    parts: tuple[int, ...],
    metadata: LoRAMetadata,
) -> None:
    """Expand shrunk rows by the matrix B of their adapter, and add them to the layer's product.

    Args:
        y: ``[num_tokens, output_size]``, changed in place; its rows are contiguous.
        shrunk: from ``lora_shrink``.
        b: ``[max_loras, max_rank, output_size]``.
        parts: the width of each, side by side in y; each has ``max_rank`` columns of ``shrunk``.
        metadata: as for ``lora_shrink``.
    """
    _, max_rank, width = b.shape
    grid = len(metadata.tiles), triton.cdiv(max(parts), EXPAND_COLUMNS), len(parts)
    _lora_expand_kernel[grid](
        y,
        shrunk,
        b,
        rows=metadata.rows,
        tiles=metadata.tiles,
        bounds=_bounds(parts, y.device),
        y_stride=y.stride(0),
        PARTS=len(parts),
        MAX_RANK=max_rank,
        WIDTH=width,
        BLOCK_M=TILE_ROWS,
        BLOCK_N=EXPAND_COLUMNS,
        BLOCK_K=RANK_TILE,
    )


@cache
def _bounds(parts: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Begins of the parts, and the end of the last: int32 ``[num_parts + 1]``."""
    bounds = [sum(parts[:number]) for number in range(len(parts) + 1)]
    return make_tensor(bounds, "int32", device)


@triton.jit
def _load_tile(tiles, tile, BLOCK_M: tl.constexpr):
    """The slot of a tile, its places among the sorted rows, and which of them there are."""
    slot = tl.load(tiles + tile * 3).to(tl.int64)
    place = tl.load(tiles + tile * 3 + 1) + tl.arange(0, BLOCK_M)
    return slot, place, place < tl.load(tiles + tile * 3 + 2)


@triton.jit
def _lora_shrink_kernel(
    shrunk, x, a, rows, tiles,
    DEPTH: tl.constexpr, WIDTH: tl.constexpr, UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    slot, place, real = _load_tile(tiles, tl.program_id(0), BLOCK_M)
    row = tl.load(rows + place, mask=real, other=0)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(0, DEPTH, BLOCK_K):
        inside = first + k < DEPTH
        left = x + row[:, None] * DEPTH + (first + k)[None, :]
        left = tl.load(left, mask=real[:, None] & inside[None, :], other=0.0)
        right = a + (slot * DEPTH + first + k)[:, None] * WIDTH + column[None, :]
        right = tl.load(right, mask=inside[:, None], other=0.0)
        if UPCAST:
            left, right = left.to(tl.float32), right.to(tl.float32)
        total += tl.dot(left, right, input_precision="ieee")
    to = shrunk + place.to(tl.int64)[:, None] * WIDTH + column[None, :]
    tl.store(to, total, mask=real[:, None])


@triton.jit(do_not_specialize=["y_stride"])
def _lora_expand_kernel(
    y, shrunk, b, rows, tiles, bounds, y_stride,
    PARTS: tl.constexpr, MAX_RANK: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(2)
    begin = tl.load(bounds + part)
    end = tl.load(bounds + part + 1)
    column = begin + tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    slot, place, real = _load_tile(tiles, tl.program_id(0), BLOCK_M)
    inside = column < end  # nowhere in the last tiles of a part that is not the widest
    k = tl.arange(0, BLOCK_K)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(0, MAX_RANK, BLOCK_K):
        left = place.to(tl.int64)[:, None] * PARTS * MAX_RANK + part * MAX_RANK
        left = tl.load(shrunk + left + (first + k)[None, :], mask=real[:, None], other=0.0)
        right = b + (slot * MAX_RANK + first + k)[:, None] * WIDTH + column[None, :]
        right = tl.load(right, mask=inside[None, :], other=0.0).to(tl.float32)
        total += tl.dot(left, right, input_precision="ieee")
    both = real[:, None] & inside[None, :]
    to = y + tl.load(rows + place, mask=real, other=0)[:, None] * y_stride + column[None, :]
    tl.store(to, tl.load(to, mask=both, other=0.0).to(tl.float32) + total, mask=both)
