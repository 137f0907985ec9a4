"""GEMM of bfloat16 rows with codes: each row as numbers of 15 bits, in two bytes, and integer dots.

Weights of few bits become floats in registers at some instructions a number; processors with VNNI
multiply and add up 64 bytes by 64 others in one (``int8_panels.py``). So 32 numbers of a row share
a step, and each is ``(128 * high + low)`` steps, of two signed bytes: finer than the 8 bits of
bfloat16. A sum of 32 products is an exact integer; scales multiply it, and sums of groups are added
up in float32, in one order. So what a row is multiplied beside changes nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from minivllm.cpu.compiled import kernel, narrow, parallel_kernel, widen
from minivllm.cpu.gemm.cache_lines import aligned
from minivllm.cpu.gemm.int8_panels import HAS_VNNI, add_dots
from minivllm.cpu.gemm.microkernel import WIDTH, broadcast, memory, store
from minivllm.cpu.gemm.panels import LANES, VECTORS, WORTH_SHARING
from minivllm.cpu.gemm.words import QuantizedPanel, fused, same_number
from minivllm.cpu.sharing import shared_range
from minivllm.models.product import returns_product

GROUP = 32  # numbers of a row that share a step
_TASK = 32  # rows
_MOST = 127 * 128  # steps of a number
_ROUNDS = np.float32(1.5 * 2**23)  # a float32 near it has no place for a fraction
_NO_SIGN = np.uint32(0x7FFFFFFF)
_ROUNDS_BITS = _ROUNDS.view(np.int32)
_LEAST = np.float32(1e-30)  # what is smaller is zero: its step would be none
_WORD, _INT = ir.IntType(32), ir.IntType(64)
_VECTOR, _WORDS = ir.VectorType(ir.FloatType(), WIDTH), ir.VectorType(_WORD, WIDTH)


class TwoByteRows(NamedTuple):
    """Rows in two bytes a number. Steps and begins have a column for each group of a row.

    ``left`` is int8: the high bytes of a group, and its low ones. ``steps``, float32, are by what a
    number is multiplied. ``begins``, int32, are what is to be added to a group's sum for the words'
    numbers being unsigned.
    """

    left: np.ndarray
    steps: np.ndarray
    begins: np.ndarray


class Panel(NamedTuple):
    """Words, scales and minimums of a panel, or of all: see ``quantized_panels``."""

    words: np.ndarray
    scales: np.ndarray
    mins: np.ndarray


def fits(words: np.ndarray, scales: np.ndarray) -> bool:
    """True for panels of integers, whose groups are whole groups of a row, where there is VNNI."""
    in_a_word = {"int32": 8, "uint8": 4}.get(words.dtype.name, 0)
    depth = words.shape[1] * in_a_word
    return HAS_VNNI and in_a_word > 0 and depth % (scales.shape[1] * GROUP) == 0


def two_byte_kernel(num_rows: int, num_vectors: int):
    """Make a micro-kernel for numba: a few rows in two bytes times a panel of integers.

    What it returns is called in compiled code, as ``multiply(sums, left, words, scales, mins,
    steps, begins)``, and does ``sums[r, c] = x[r, k] * weight[k, c]``, for rows as in
    ``TwoByteRows``.
    """

    @intrinsic
    def multiply(typing, sums, left, words, scales, mins, steps, begins):
        return types.void(sums, left, words, scales, mins, steps, begins), emit

    def emit(context, builder, signature, args):
        (sums, (sums_stride, _)), (left, (left_stride, _)) = (
            memory(context, builder, signature, args, i) for i in (0, 1)
        )
        (steps, (steps_stride, _)), (begins, (begins_stride, _)) = (
            memory(context, builder, signature, args, i) for i in (5, 6)
        )
        panel = QuantizedPanel(context, builder, signature, args)
        words_per_group = GROUP // panel.rows_per_word
        rows, vectors = range(num_rows), range(num_vectors)
        places = [(r, v) for r in rows for v in vectors]
        registers = {place: cgutils.alloca_once(builder, _VECTOR) for place in places}
        for register in registers.values():
            builder.store(same_number(0.0), register)

        def add_group(number, group):
            """Add group ``number`` of the rows; its weights have scales of ``group``."""
            first = builder.mul(number, _INT(words_per_group))
            column = builder.gep(left, [builder.mul(number, _INT(2 * GROUP))])
            starts = [builder.gep(column, [builder.mul(left_stride, _INT(r))]) for r in rows]
            highs = dict.fromkeys(places, _WORDS([0] * WIDTH))
            lows = {}
            offsets = []
            for r in rows:
                at = builder.add(builder.mul(begins_stride, _INT(r)), number)
                begin = builder.load(builder.gep(begins, [at]))
                offsets.append(begin)
                for v in vectors:
                    lows[r, v] = broadcast(builder, begin)
            for k in range(words_per_group):
                words = [panel.word(builder.add(first, _INT(k)), v) for v in vectors]
                for i, fours in enumerate(zip(*map(panel.bytes, words), strict=True)):
                    at = 4 * (k * panel.rows_per_word // 4 + i)
                    for r in rows:
                        high = _four(builder, starts[r], at)
                        low = _four(builder, starts[r], at + GROUP)
                        for v in vectors:
                            highs[r, v] = add_dots(builder, highs[r, v], fours[v], high)
                            lows[r, v] = add_dots(builder, lows[r, v], fours[v], low)
            factors = [panel.scale_and_offset(group, v, are_centred=True) for v in vectors]
            for r in rows:
                at = builder.add(builder.mul(steps_stride, _INT(r)), number)
                step = broadcast(builder, builder.load(builder.gep(steps, [at])))
                for v in vectors:
                    high = builder.shl(highs[r, v], _WORDS([7] * WIDTH))
                    dot = builder.sitofp(builder.add(high, lows[r, v]), _VECTOR)
                    scale, offset = factors[v]
                    total = builder.load(registers[r, v])
                    total = fused(builder, dot, builder.fmul(scale, step), total)
                    if offset is not None:
                        begin = builder.sitofp(broadcast(builder, offsets[r]), _VECTOR)
                        centre = same_number(-1 / panel.half)
                        sum_of_row = builder.fmul(builder.fmul(begin, centre), step)
                        total = fused(builder, sum_of_row, offset, total)
                    builder.store(total, registers[r, v])

        per_group = builder.sdiv(
            panel.num_words, builder.mul(panel.num_groups, _INT(words_per_group))
        )
        with cgutils.for_range(builder, panel.num_groups) as groups:
            first = builder.mul(groups.index, per_group)
            with cgutils.for_range(builder, per_group) as parts:
                add_group(builder.add(first, parts.index), groups.index)
        for r, v in places:
            at = builder.add(builder.mul(sums_stride, _INT(r)), _INT(v * WIDTH))
            store(builder, builder.load(registers[r, v]), builder.gep(sums, [at]))
        return context.get_dummy_value()

    return multiply


def _four(builder, start, place):
    """Four bytes of a row, in all lanes."""
    at = builder.bitcast(builder.gep(start, [_INT(place)]), _WORD.as_pointer())
    return broadcast(builder, builder.load(at, align=4))


_pair, _single = (two_byte_kernel(rows, VECTORS) for rows in (2, 1))


@returns_product
def multiply_arrays(
    x: np.ndarray,
    words: np.ndarray,
    scales: np.ndarray,
    mins: np.ndarray,
    bias: np.ndarray,
    output_size: int,
) -> np.ndarray:
    """``x @ weight.T + bias``, ``[n, output_size]``, bfloat16 or float32 as x; the bias is float32.

    Panels are as ``quantized_panels.QuantizedPanels``, and fit (``fits``).
    """
    num_rows, depth = x.shape
    rows = TwoByteRows(
        left=np.empty((num_rows, 2 * depth), np.int8),
        steps=np.empty((num_rows, depth // GROUP), np.float32),
        begins=np.empty((num_rows, depth // GROUP), np.int32),
    )
    output = np.empty((num_rows, output_size), x.dtype)
    _round(x.size, rows, x, words.dtype == np.int32)
    _multiply(x.size * output_size, output, rows, Panel(words, scales, mins), bias)
    return output


@parallel_kernel(WORTH_SHARING)
def _round(share, rows, x, are_nibbles):
    """Round each group of a row to a 16,256th of its largest number, ties to even.

    Nibbles of a word come as four even ones and four odd ones.
    """
    for r in shared_range(share, len(x)):
        numbers = np.empty(GROUP, np.int32)
        for g in range(rows.steps.shape[1]):
            group = x[r, g * GROUP : (g + 1) * GROUP]
            most = np.uint32(0)
            total = np.int32(0)
            for k in range(GROUP):  # without signs, bits are in the order of the numbers
                most = max(most, np.float32(widen(group[k])).view(np.uint32) & _NO_SIGN)
            largest = np.uint32(most).view(np.float32)
            step = (_LEAST if largest < _LEAST else largest) / np.float32(_MOST)  # NaN stays one
            inverse = np.float32(1) / step
            for k in range(GROUP):  # the sum's last bits are the number
                shifted = widen(group[k]) * inverse + _ROUNDS
                number = np.float32(shifted).view(np.int32) - _ROUNDS_BITS
                numbers[k] = number
                total += number
            to = rows.left[r, 2 * g * GROUP : 2 * (g + 1) * GROUP]
            for k in range(GROUP):
                high = (numbers[k] + 64) >> 7
                place = (k & ~7) | ((k & 1) << 2) | ((k & 7) >> 1) if are_nibbles else k
                to[place] = high
                to[GROUP + place] = numbers[k] - (high << 7)
            rows.steps[r, g] = step
            rows.begins[r, g] = total * (-8 if are_nibbles else -128)


@parallel_kernel(WORTH_SHARING)
def _multiply(share, output, rows, panels, bias):
    num_panels = len(panels.words)
    for task in shared_range(share, -(-len(rows.left) // _TASK) * num_panels):
        begin = task // num_panels * _TASK
        end = begin + _TASK
        number = task % num_panels
        first = number * LANES
        place = output[begin:end, first : first + LANES]
        sums = aligned(_TASK, LANES, np.float32)
        some = TwoByteRows(rows.left[begin:end], rows.steps[begin:end], rows.begins[begin:end])
        panel = Panel(panels.words[number], panels.scales[number], panels.mins[number])
        _multiply_panel(sums, some, panel)
        for r in range(len(place)):
            for c in range(place.shape[1]):
                total = sums[r, c]
                if len(bias) > 0:
                    total += bias[first + c]
                place[r, c] = narrow(total, place)


@kernel
def _multiply_panel(sums, rows, panel):
    """Multiply rows by a panel, two at a time."""
    r = 0
    while r + 2 <= len(rows.left):
        _pair(
            sums[r:], rows.left[r:], words=panel.words, scales=panel.scales, mins=panel.mins,
            steps=rows.steps[r:], begins=rows.begins[r:],
        )  # fmt: skip
        r += 2
    if r < len(rows.left):
        _single(
            sums[r:], rows.left[r:], words=panel.words, scales=panel.scales, mins=panel.mins,
            steps=rows.steps[r:], begins=rows.begins[r:],
        )  # fmt: skip
