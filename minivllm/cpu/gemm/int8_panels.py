"""GEMM of int8 by int8 (W8A8): rows of x are rounded, too, and products of integers added up.

The weight is in panels of bytes (``quantized_panels.py``) with one scale a column. Each row of x
has a step of its own, so that what is beside it in a batch changes nothing. Sums of integers are
exact in any order. Processors with VNNI multiply four bytes by four others and add them up, in all
lanes, in one instruction. Elsewhere four numbers of 32 bits are multiplied, to the same sums.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from minivllm.cpu.compiled import kernel, parallel_kernel
from minivllm.cpu.gemm.microkernel import FEATURES, WIDTH, broadcast, load, memory, store
from minivllm.cpu.gemm.panels import (
    LANES,
    TASK,
    VECTORS,
    WORTH_SHARING,
    begin_sums,
    bias_array,
    copy,
)
from minivllm.cpu.gemm.quantized_panels import QuantizedPanels
from minivllm.cpu.gemm.words import Words, fused, same_number
from minivllm.cpu.sharing import shared_range
from minivllm.models.product import returns_product
from minivllm.utils.tensors import as_numpy

_BYTE, _WORD, _INT = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_VECTOR, _WORDS = ir.VectorType(ir.FloatType(), WIDTH), ir.VectorType(_WORD, WIDTH)
HAS_VNNI = {16: "+avx512vnni", 8: "+avxvnni"}.get(WIDTH) in FEATURES
"""True if one instruction multiplies bytes and adds them up, in all lanes."""
_ROWS = 4  # of a tile, as in quantized_panels.py
_ROUNDS = np.float32(1.5 * 2**23)  # a float32 near it has no place for a fraction


def int8_kernel(num_rows: int, num_vectors: int):
    """Make a micro-kernel for numba: a few rows of int8 times a panel of bytes.

    What it returns is called in compiled code, as ``multiply_add(sums, left, words, scales, steps,
    begins, accumulate)``, and does ``sums[r, c] += steps[r] * scales[c] * (the sum of left[r, k] *
    weight[k, c])``. ``accumulate=False`` begins at 0.
    ``begins[r]`` is -128 times the sum of left's row r: a byte of a panel is a weight plus 128.
    The sums and the steps are float32, left is int8, and begins is int32.
    """

    @intrinsic
    def multiply_add(typing, sums, left, words, scales, steps, begins, accumulate):
        return types.void(sums, left, words, scales, steps, begins, types.boolean), emit

    def emit(context, builder, signature, args):
        (sums, (sums_stride, _)), (left, (left_stride, _)) = (
            memory(context, builder, signature, args, i) for i in range(2)
        )
        scales, steps, begins = (memory(context, builder, signature, args, i)[0] for i in (3, 4, 5))
        panel = Words(context, builder, signature, args, 2)
        rows, vectors = range(num_rows), range(num_vectors)
        places = list(product(rows, vectors))
        registers = {place: cgutils.alloca_once(builder, _WORDS) for place in places}
        for r, v in places:
            begin = broadcast(builder, builder.load(builder.gep(begins, [_INT(r)])))
            builder.store(begin, registers[r, v])
        with cgutils.for_range(builder, panel.num_words) as loop:
            words = [panel.word(loop.index, v) for v in vectors]
            column = builder.gep(left, [builder.mul(loop.index, _INT(4))])
            for r in rows:
                at = builder.gep(column, [builder.mul(left_stride, _INT(r))])
                for v, word in enumerate(words):
                    total = _add_four(builder, panel, builder.load(registers[r, v]), word, at)
                    builder.store(total, registers[r, v])
        for r, v in places:
            at = builder.add(builder.mul(sums_stride, _INT(r)), _INT(v * WIDTH))
            at = builder.gep(sums, [at])
            dot = builder.sitofp(builder.load(registers[r, v]), _VECTOR)
            step = broadcast(builder, builder.load(builder.gep(steps, [_INT(r)])))
            scale = load(builder, builder.gep(scales, [_INT(v * WIDTH)]), signature.args[3].dtype)
            factor = builder.fmul(scale, step)
            before = builder.select(args[6], load(builder, at), same_number(0.0))
            store(builder, fused(builder, dot, factor, before), at)
        return context.get_dummy_value()

    return multiply_add


def _add_four(builder, panel, total, word, at):
    """Add the products of the four bytes of each word and four numbers of x."""
    if HAS_VNNI:
        numbers = builder.load(builder.bitcast(at, _WORD.as_pointer()), align=1)
        return add_dots(builder, total, word, broadcast(builder, numbers))
    for i in range(4):
        number = builder.sext(builder.load(builder.gep(at, [_INT(i)])), _WORD)
        numbers = builder.mul(broadcast(builder, number), panel.byte(word, i))
        total = builder.add(total, numbers)
    return total


def add_dots(builder, total, word, numbers):
    """Add the products of four unsigned bytes and four signed ones, in each lane: VNNI."""
    kind = ir.FunctionType(_WORDS, [_WORDS] * 3)
    name = f"llvm.x86.avx512.vpdpbusd.{32 * WIDTH}"
    instruction = cgutils.get_or_insert_function(builder.module, kind, name)
    return builder.call(instruction, [total, word, numbers])


_tile, _pair, _single = (int8_kernel(rows, VECTORS) for rows in (_ROWS, 2, 1))


def multiply(
    x: torch.Tensor, panels: QuantizedPanels, bias: torch.Tensor | None, output_size: int
) -> torch.Tensor:
    """``round(x) @ weight.T + bias`` in float32, ``[n, output_size]``.

    The panels are of bytes, with one group and without zero points.
    """
    rows, words, scales = x.float().contiguous().numpy(), *map(as_numpy, panels[:2])
    return torch.from_numpy(multiply_arrays(rows, words, scales, bias_array(bias), output_size))


@returns_product
def multiply_arrays(
    x: np.ndarray, words: np.ndarray, scales: np.ndarray, bias: np.ndarray, output_size: int
) -> np.ndarray:
    """Do what ``multiply`` does, in arrays; x and the bias are float32."""
    rounded, steps = np.empty(x.shape, np.int8), np.empty(len(x), np.float32)
    begins, output = np.empty(len(x), np.int32), np.empty((len(x), output_size), np.float32)
    _round(x.size, rounded, steps, begins, x)
    _multiply(x.size * output_size, output, rounded, steps, begins, words, scales, bias)
    return output


@parallel_kernel(WORTH_SHARING)
def _round(share, rounded, steps, begins, x):
    """Round each row to a 127th of its largest number, and of two as near to the even one."""
    for r in shared_range(share, len(x)):
        numbers, most, total = x[r], np.uint32(0), np.int32(0)
        bits = numbers.view(np.uint32)
        for k in range(len(bits)):  # without signs, bits are in the order of the numbers
            most = max(most, bits[k] & np.uint32(0x7FFFFFFF))
        step = np.uint32(most).view(np.float32) / np.float32(127)
        for k in range(len(numbers)):
            # The sum's last bits are the number; a row of zeros has no step.
            shifted = numbers[k] / (step if step > 0 else np.float32(1)) + _ROUNDS
            number = np.int8(np.float32(shifted).view(np.uint32) & 0xFF)
            rounded[r, k] = number
            total += np.int32(number)
        steps[r], begins[r] = step, -128 * total


@parallel_kernel(WORTH_SHARING)
def _multiply(share, output, x, steps, begins, words, scales, bias):
    num_panels = len(words)
    for task in shared_range(share, -(-len(x) // TASK) * num_panels):
        begin, panel = task // num_panels * TASK, task % num_panels
        end, first = begin + TASK, panel * LANES
        place = output[begin:end, first : first + LANES]
        sums, size = begin_sums(place, bias, first), place.shape[1]
        _multiply_panel(
            sums, x[begin:end], steps[begin:end], begins=begins[begin:end],
            words=words[panel], scales=scales[panel, 0], adds=len(bias) > 0,
        )  # fmt: skip
        if size < LANES:
            copy(place, sums[:, :size])


@kernel
def _multiply_panel(sums, rows, steps, begins, words, scales, adds):
    """Multiply rows by a panel, tile by tile."""
    r = 0
    while r + _ROWS <= len(rows):
        _tile(sums[r:], rows[r:], words, scales, steps[r:], begins[r:], adds)
        r += _ROWS
    while r + 2 <= len(rows):
        _pair(sums[r:], rows[r:], words, scales, steps[r:], begins[r:], adds)
        r += 2
    if r < len(rows):
        _single(sums[r:], rows[r:], words, scales, steps[r:], begins[r:], adds)
