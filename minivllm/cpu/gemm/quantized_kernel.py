"""Micro-kernels for panels of few bits, whose numbers become floats in the processor's registers.

A weight is ``q * scale + offset``, both of its column and group of rows. So a group's numbers q are
multiplied and added up first. Then the scale multiplies the sum, and the offset the sum of the
group's elements of x: an operation a group, not one a weight.
"""

from __future__ import annotations

from itertools import product

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from minivllm.cpu.gemm.microkernel import WIDTH, broadcast, load, memory, store
from minivllm.cpu.gemm.words import QuantizedPanel, fused, same_number

_VECTOR, _INT = ir.VectorType(ir.FloatType(), WIDTH), ir.IntType(64)


def quantized_kernel(num_rows: int, num_vectors: int):
    """Make a micro-kernel for numba: a few rows times a panel.

    What it returns is called in compiled code, as ``multiply_add(sums, left, words, scales, mins,
    totals, accumulate)``, and does ``sums[r, c] += left[r, k] * weight[k, c]``.
    ``accumulate=False`` begins at 0. ``totals[r, g]`` is the sum of left's row r over group g.

    Sums, left and totals are float32. All are matrices whose rows are contiguous; words have a row
    for each eight or four k, scales and mins have one for each group.
    """

    @intrinsic
    def multiply_add(typing, sums, left, words, scales, mins, totals, accumulate):
        return types.void(sums, left, words, scales, mins, totals, types.boolean), emit

    # A sum waits for the sum before, some four cycles: so there are eight, or as many as fit.
    sets = 2 if num_rows * num_vectors < 8 else 1

    def emit(context, builder, signature, args):
        (sums, (sums_stride, _)), (left, (left_stride, _)), (totals, (totals_stride, _)) = (
            memory(context, builder, signature, args, i) for i in (0, 1, 5)
        )
        panel = QuantizedPanel(context, builder, signature, args)
        rows, vectors = range(num_rows), range(num_vectors)
        registers = {
            place: cgutils.alloca_once(builder, _VECTOR)
            for place in product(rows, vectors, range(sets))
        }
        num_words = builder.sdiv(panel.num_words, panel.num_groups)
        with cgutils.for_range(builder, panel.num_groups) as groups:
            for register in registers.values():
                builder.store(same_number(0.0), register)
            first = builder.mul(groups.index, num_words)
            with cgutils.for_range(builder, num_words) as loop:
                row = builder.add(first, loop.index)
                words = [panel.word(row, v) for v in vectors]
                column = builder.gep(left, [builder.mul(row, _INT(panel.rows_per_word))])
                for i in range(panel.rows_per_word):
                    numbers = [panel.numbers(word, i) for word in words]
                    for r in rows:
                        at = builder.add(builder.mul(left_stride, _INT(r)), _INT(i))
                        x = broadcast(builder, builder.load(builder.gep(column, [at])))
                        for v in vectors:
                            register = registers[r, v, i % sets]
                            total = fused(builder, x, numbers[v], builder.load(register))
                            builder.store(total, register)
            goes_on = builder.or_(args[6], builder.icmp_signed(">", groups.index, _INT(0)))
            for v in vectors:
                scale, offset = panel.scale_and_offset(groups.index, v)
                for r in rows:
                    dot = builder.load(registers[r, v, 0])
                    for i in range(1, sets):
                        dot = builder.fadd(dot, builder.load(registers[r, v, i]))
                    at = builder.add(builder.mul(sums_stride, _INT(r)), _INT(v * WIDTH))
                    at = builder.gep(sums, [at])
                    before = builder.select(goes_on, load(builder, at), same_number(0.0))
                    result = fused(builder, dot, scale, before)
                    if offset is not None:
                        place = builder.add(builder.mul(totals_stride, _INT(r)), groups.index)
                        total = broadcast(builder, builder.load(builder.gep(totals, [place])))
                        result = fused(builder, total, offset, result)
                    store(builder, result, at)
        return context.get_dummy_value()

    return multiply_add


def dequantize_kernel(num_vectors: int):
    """Make a kernel for numba: rows of a panel as float32, all of one group.

    What it returns is called in compiled code, as ``dequantize(piece, group, words, scales,
    mins)``, and does ``piece[k, c] = weight[k, c]`` for the k of these words. Arrays are as above.
    """

    @intrinsic
    def dequantize(typing, piece, group, words, scales, mins):
        return types.void(piece, types.int64, words, scales, mins), emit

    def emit(context, builder, signature, args):
        piece, (stride, _) = memory(context, builder, signature, args, 0)
        panel = QuantizedPanel(context, builder, signature, args)
        factors = [panel.scale_and_offset(args[1], v) for v in range(num_vectors)]
        with cgutils.for_range(builder, panel.num_words) as loop:
            first = builder.mul(loop.index, _INT(panel.rows_per_word))
            words = [panel.word(loop.index, v) for v in range(num_vectors)]
            for i in range(panel.rows_per_word):
                row = builder.gep(piece, [builder.mul(stride, builder.add(first, _INT(i)))])
                for v, (scale, offset) in enumerate(factors):
                    weight = panel.numbers(words[v], i)
                    if offset is None:
                        weight = builder.fmul(weight, scale)
                    else:
                        weight = fused(builder, weight, scale, offset)
                    store(builder, weight, builder.gep(row, [_INT(v * WIDTH)]))
        return context.get_dummy_value()

    return dequantize
