"""GEMM with a weight of 4 or 8 bits in panels: nibbles or bytes, and 16-bit scales beside them.

Panels are as wide as those of floats (``panels.py``), and the product is float32 as theirs. A few
rows are multiplied by the numbers as they are there (``quantized_kernel.py``). For many rows each
number would become a float again and again: so a piece of a panel becomes floats once, stays in the
second cache, and tiles of floats follow.
(notebook 18b)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from minivllm.cpu.compiled import kernel, parallel_kernel
from minivllm.cpu.gemm.cache_lines import aligned
from minivllm.cpu.gemm.panels import (
    DEPTH,
    LANES,
    TASK,
    VECTORS,
    WORTH_SHARING,
    begin_sums,
    bias_array,
    copy,
    multiply_piece,
)
from minivllm.cpu.gemm.quantized_kernel import dequantize_kernel, quantized_kernel
from minivllm.cpu.sharing import shared_range
from minivllm.models.product import returns_product
from minivllm.utils.tensors import as_numpy
from minivllm.utils.validation import check

_MANY = 24  # rows from which on a piece becomes floats first
_ROWS = 4  # of a tile: its sums, and the numbers of a row, fit into the registers
_tile, _pair, _single = (quantized_kernel(rows, VECTORS) for rows in (_ROWS, 2, 1))
_dequantize = dequantize_kernel(VECTORS)


class QuantizedPanels(NamedTuple):
    """Weight ``[output, input]`` in panels; the last one is filled up with zeros.

    Words are int32 ``[panels, input / 8, LANES]`` for nibbles, and ``[panels, input / 4,
    4 * LANES]`` for bytes, uint8, and for floats in e4m3, int8. Scales are ``[panels, groups,
    LANES]``, of any float dtype. Mins are as scales (int8 for zero points, a float dtype for
    minimums), or uint8 ``[panels, groups, 0]``.
    """

    words: torch.Tensor
    scales: torch.Tensor
    mins: torch.Tensor


def pack(
    q: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None = None,
    mins: torch.Tensor | None = None,
) -> QuantizedPanels:
    """Pack a weight ``(q - zeros) * scales``, or ``q * scales + mins``.

    Args:
        q: ``[output, input]``: uint8 for 4 bits, from 0 to 15; int8 or e4m3 for 8 bits.
        scales: ``[output, groups]``, of any float dtype. A group is ``input / groups`` elements.
        zeros: int8 as scales; None: 8 for 4 bits and 0 for 8 bits, if there are no mins.
        mins: float as scales.

    Raises:
        ValueError: a group ends within a word.
    """
    in_a_word = 8 if q.dtype == torch.uint8 else 4
    group = q.size(1) / scales.size(1)
    ok = group % in_a_word == 0
    check(ok, "group size", f"{group:g}", f"a multiple of {in_a_word}, the rows of a word")
    columns = q.view(torch.int8) if q.dtype == torch.float8_e4m3fn else q
    columns = _panels(columns).unflatten(1, (-1, in_a_word))  # [panels, words, in a word, LANES]
    if q.dtype == torch.uint8:
        words = torch.zeros_like(columns[:, :, 0], dtype=torch.int32)
        for i in range(in_a_word):
            words |= columns[:, :, i].int() << 4 * i
    else:
        if q.dtype == torch.int8:
            columns = columns.view(torch.uint8) ^ 128
        words = columns.transpose(2, 3).flatten(2).contiguous()
    offsets = zeros if mins is None else mins
    scales = _panels(scales)
    empty = torch.empty((*scales.shape[:2], 0), dtype=torch.uint8)
    return QuantizedPanels(words, scales, empty if offsets is None else _panels(offsets))


def _panels(columns: torch.Tensor) -> torch.Tensor:
    """Panels ``[panels, rows, LANES]`` of ``[output, rows]``, filled up with zeros."""
    missing = -len(columns) % LANES
    filled = torch.cat((columns, columns.new_zeros(missing, columns.size(1))))
    return filled.unflatten(0, (-1, LANES)).transpose(1, 2).contiguous()


def unpack_rows(panels: QuantizedPanels, rows: torch.Tensor) -> torch.Tensor:
    """Rows of a weight in panels, float32 ``[n, input]``, by their numbers, int64 ``[n]``."""
    at, lanes = rows // LANES, rows % LANES
    words, scales, mins = panels
    if words.dtype == torch.int32:
        q = (words[at, :, lanes].unsqueeze(-1) >> torch.arange(0, 32, 4)) & 15
    else:
        q = words.unflatten(2, (LANES, 4))[at, :, lanes].int() - 128
    numbers = q.flatten(1).unflatten(1, (scales.size(1), -1)).float()
    scales = scales[at, :, lanes].unsqueeze(-1).float()
    if mins.dtype == torch.uint8:
        zero = 8 if words.dtype == torch.int32 else 0
        return ((numbers - zero) * scales).flatten(1)
    offsets = mins[at, :, lanes].unsqueeze(-1).float()
    if mins.dtype == torch.int8:
        return ((numbers - offsets) * scales).flatten(1)
    return (numbers * scales + offsets).flatten(1)


def multiply(
    x: torch.Tensor, panels: QuantizedPanels, bias: torch.Tensor | None, output_size: int
) -> torch.Tensor:
    """``x @ weight.T + bias`` in float32, ``[n, output_size]``."""
    rows = x.float().contiguous().numpy()
    words, scales, mins = (as_numpy(tensor) for tensor in panels)
    output = multiply_arrays(
        rows, words, scales, mins=mins, bias=bias_array(bias), output_size=output_size
    )
    return torch.from_numpy(output)


@returns_product
def multiply_arrays(
    x: np.ndarray,
    words: np.ndarray,
    scales: np.ndarray,
    mins: np.ndarray,
    bias: np.ndarray,
    output_size: int,
) -> np.ndarray:
    """Do what ``multiply`` does, in arrays; x and the bias are float32."""
    output = np.empty((len(x), output_size), np.float32)
    is_few = len(x) < _MANY
    totals = np.empty((len(x), scales.shape[1] if is_few else 0), np.float32)
    _add_up(totals, x)
    _multiply(len(x) * x.shape[1] * output_size, output, x, totals, words, scales, mins, bias)
    return output


@kernel
def _add_up(totals, x):
    """Sums of x over groups, for weights with an offset."""
    for r in range(len(totals)):
        for g in range(totals.shape[1]):
            size, total = x.shape[1] // totals.shape[1], np.float32(0)
            for k in range(g * size, (g + 1) * size):
                total += x[r, k]
            totals[r, g] = total


@parallel_kernel(WORTH_SHARING)
def _multiply(share, output, x, totals, words, scales, mins, bias):
    num_panels = len(words)
    for task in shared_range(share, -(-len(x) // TASK) * num_panels):
        begin, panel = task // num_panels * TASK, task % num_panels
        end, first = begin + TASK, panel * LANES
        place = output[begin:end, first : first + LANES]
        sums, size = begin_sums(place, bias, first), place.shape[1]
        rows, adds = x[begin:end], len(bias) > 0
        if totals.shape[1] > 0:
            some = totals[begin:end]
            _multiply_few(
                sums,
                rows,
                some,
                words=words[panel],
                scales=scales[panel],
                mins=mins[panel],
                adds=adds,
            )
        else:
            _multiply_many(
                sums, rows, words[panel], scales=scales[panel], mins=mins[panel], adds=adds
            )
        if size < LANES:
            copy(place, sums[:, :size])


@kernel
def _multiply_few(sums, rows, totals, words, scales, mins, adds):
    """Multiply a few rows by a panel, tile by tile."""
    r = 0
    while r + _ROWS <= len(rows):
        _tile(sums[r:], rows[r:], words, scales, mins, totals[r:], adds)
        r += _ROWS
    while r + 2 <= len(rows):
        _pair(sums[r:], rows[r:], words, scales, mins, totals[r:], adds)
        r += 2
    if r < len(rows):
        _single(sums[r:], rows[r:], words, scales, mins, totals[r:], adds)


@kernel
def _multiply_many(sums, rows, words, scales, mins, adds):
    """Multiply rows by a panel, whose pieces become float32."""
    depth = rows.shape[1]
    in_a_word, size = depth // len(words), depth // len(scales)
    piece = aligned(DEPTH, LANES, np.float32)
    for k in range(0, depth, DEPTH):
        at, end = k, min(k + DEPTH, depth)
        while at < end:  # parts of a group that are in this piece
            g = at // size
            stop = min(end, (g + 1) * size)
            part = words[at // in_a_word : stop // in_a_word]
            _dequantize(piece[at - k :], g, part, scales, mins)
            at = stop
        multiply_piece(sums, rows[:, k:], piece[: end - k], adds or k > 0)
