"""Micro-kernels for weights of 4 and 8 bits, which become floats in the processor's registers.

A word of 32 bits holds eight rows (nibbles, 4 bits) or four rows (bytes, signed) of one column, the
first row lowest. Memory is read in these bits, which for a few rows of a batch is all the time that
a product takes. A weight is ``q * scale + offset``, both of its column and group of rows. So a
group's numbers q are multiplied and added up first. Then the scale multiplies the sum, and the
offset the sum of the group's elements of x: an operation a group, not one a weight.

Words are int32 for nibbles and int8 for bytes. Scales are of any float dtype, see ``as_numpy``.
The dtype of ``mins`` says what the offset is: for int8 the zero points of ``(q - zero) * scale``,
for a float dtype the minimum that is added, and uint8 is an empty array: nibbles have the zero
point 8, bytes 0.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from minivllm.cpu.gemm.cache_lines import prefetch_line
from minivllm.cpu.gemm.microkernel import WIDTH, broadcast, load, memory, store

_FLOAT, _WORD, _INT = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_VECTOR, _WORDS = ir.VectorType(_FLOAT, WIDTH), ir.VectorType(_WORD, WIDTH)
_BYTES = ir.VectorType(ir.IntType(8), WIDTH)
_FUSED = ("contract",)  # a product and a sum are one instruction
# Sums in flight of one row: an instruction waits for the sum before, some four cycles.
_SETS = 1 if WIDTH == 16 else 2
_AHEAD = 4096  # words from where a panel is read to where it is prefetched


def group_kernel(num_rows: int, num_vectors: int):
    """Make a micro-kernel for numba: a few rows times a group of a panel.

    What it returns is called in compiled code, as ``multiply_group(sums, left, words, scales, mins,
    totals)``, and does ``sums[r, c] += left[r, k] * weight[k, c]`` for all rows k of the words.
    ``totals[r]`` is the sum of left's row r over them. Sums, left and totals are float32; rows of
    the matrices are contiguous, and so are scales and mins.
    """

    @intrinsic
    def multiply_group(typing, sums, left, words, scales, mins, totals):
        return types.void(sums, left, words, scales, mins, totals), emit

    def emit(context, builder, signature, args):
        (sums, (sums_stride, _)), (left, (left_stride, _)), _, _, _, (totals, (step,)) = (
            memory(context, builder, signature, args, i) for i in range(6)
        )
        group = _Group(context, builder, signature, args)
        places = [(r, v) for r in range(num_rows) for v in range(num_vectors)]
        registers = {
            (*place, i): cgutils.alloca_once_value(builder, _same(0.0))
            for place in places
            for i in range(_SETS)
        }
        with cgutils.for_range(builder, group.num_words) as loop:
            words = [group.word(loop.index, v) for v in range(num_vectors)]
            first = builder.gep(left, [builder.mul(loop.index, _INT(group.rows_per_word))])
            for i in range(group.rows_per_word):
                numbers = [group.numbers(word, i) for word in words]
                for r in range(num_rows):
                    at = builder.add(builder.mul(left_stride, _INT(r)), _INT(i))
                    x = broadcast(builder, builder.load(builder.gep(first, [at])))
                    for v in range(num_vectors):
                        register = registers[r, v, i % _SETS]
                        sum_ = _fused(builder, x, numbers[v], builder.load(register))
                        builder.store(sum_, register)
        for v in range(num_vectors):
            scale, offset = group.scale_and_offset(v)
            for r in range(num_rows):
                dot = builder.load(registers[r, v, 0])
                for i in range(1, _SETS):
                    dot = builder.fadd(dot, builder.load(registers[r, v, i]))
                at = builder.add(builder.mul(sums_stride, _INT(r)), _INT(v * WIDTH))
                at = builder.gep(sums, [at])
                result = _fused(builder, dot, scale, load(builder, at))
                if offset is not None:
                    total = builder.load(builder.gep(totals, [builder.mul(step, _INT(r))]))
                    result = _fused(builder, broadcast(builder, total), offset, result)
                store(builder, result, at)
        return context.get_dummy_value()

    return multiply_group


def dequantize_kernel(num_vectors: int):
    """Make a kernel for numba: a group of a panel as float32.

    What it returns is called in compiled code, as ``dequantize(piece, piece, words, scales, mins)``
    (the piece twice: a group's arguments have the same places in both kernels).
    """

    @intrinsic
    def dequantize(typing, piece, same, words, scales, mins):
        return types.void(piece, same, words, scales, mins), emit

    def emit(context, builder, signature, args):
        piece, (stride, _) = memory(context, builder, signature, args, 0)
        group = _Group(context, builder, signature, args)
        factors = [group.scale_and_offset(v) for v in range(num_vectors)]
        with cgutils.for_range(builder, group.num_words) as loop:
            first = builder.mul(loop.index, _INT(group.rows_per_word))
            words = [group.word(loop.index, v) for v in range(num_vectors)]
            for i in range(group.rows_per_word):
                row = builder.gep(piece, [builder.mul(stride, builder.add(first, _INT(i)))])
                for v, (scale, offset) in enumerate(factors):
                    weight = group.numbers(words[v], i)
                    if offset is None:
                        weight = builder.fmul(weight, scale)
                    else:
                        weight = _fused(builder, weight, scale, offset)
                    store(builder, weight, builder.gep(row, [_INT(v * WIDTH)]))
        return context.get_dummy_value()

    return dequantize


class _Group:
    """Words, scales and mins of a group, which are arguments 2, 3 and 4 of a kernel."""

    def __init__(self, context, builder, signature, args):
        self._builder = builder
        self._scales, self._mins = ((memory(context, builder, signature, args, i)[0], signature.args[i].dtype) for i in (3, 4))
        self._nibbles = signature.args[2].dtype == types.int32
        self.rows_per_word = 8 if self._nibbles else 4
        words, (self._stride, _) = memory(context, builder, signature, args, 2)
        if not self._nibbles:
            self._stride = builder.sdiv(self._stride, _INT(4))
        self._words = builder.bitcast(words, _WORD.as_pointer())
        array = context.make_array(signature.args[2])(context, builder, args[2])
        self.num_words = cgutils.unpack_tuple(builder, array.shape)[0]
        # What is subtracted from each nibble for nothing: the table holds the numbers of -8 .. 7.
        self._centre = 8 if self._nibbles and WIDTH == 16 else 0
        self._shift = self._centre if self._nibbles else -128  # q less what ``numbers`` gives
        self._zero = 8 if self._nibbles else 0  # the zero point that has no array

    def word(self, row, v):
        """Words ``v * WIDTH`` to ``(v + 1) * WIDTH - 1`` of a row."""
        at = self._builder.add(self._builder.mul(row, self._stride), _INT(v * WIDTH))
        at = self._builder.gep(self._words, [at])
        prefetch_line(self._builder, self._builder.gep(at, [_INT(_AHEAD)]))
        return self._builder.load(self._builder.bitcast(at, _WORDS.as_pointer()), align=4)

    def numbers(self, word, i):
        """Numbers q in place ``i`` of the words, less the centre, as float32."""
        builder = self._builder
        if not self._nibbles:
            # Also one instruction: zeros are shuffled in around a byte.
            single = ir.VectorType(ir.IntType(8), 4 * WIDTH)
            zeros, places = single([0] * (4 * WIDTH)), [4 * WIDTH] * (4 * WIDTH)
            places[::4] = range(i, 4 * WIDTH, 4)
            places = ir.VectorType(_WORD, 4 * WIDTH)(places)
            low = builder.shuffle_vector(builder.bitcast(word, single), zeros, places)
            return builder.sitofp(builder.bitcast(low, _WORDS), _VECTOR)
        low = builder.lshr(word, _WORDS([4 * i] * WIDTH))
        if WIDTH == 16:  # one instruction: a table in a register, by the lowest 4 bits
            kind = ir.FunctionType(_VECTOR, [_VECTOR, _WORDS])
            name = "llvm.x86.avx512.permvar.sf.512"
            look_up = cgutils.get_or_insert_function(builder.module, kind, name)
            table = _VECTOR([float(q - self._centre) for q in range(16)])
            return builder.call(look_up, [table, low])
        return builder.sitofp(builder.and_(low, _WORDS([15] * WIDTH)), _VECTOR)

    def scale_and_offset(self, v):
        """Scale and offset by which ``numbers`` of vector v become weights; None for no offset."""
        builder = self._builder
        (scales, dtype), (mins, kind) = self._scales, self._mins
        column = [_INT(v * WIDTH)]
        scale = load(builder, builder.gep(scales, column), dtype)
        if kind == types.uint8:
            difference = float(self._shift - self._zero)
            return scale, builder.fmul(scale, _same(difference)) if difference else None
        shift, at = _same(float(self._shift)), builder.gep(mins, column)
        if kind == types.int8:
            zeros = builder.load(builder.bitcast(at, _BYTES.as_pointer()), align=1)
            zeros = builder.sitofp(zeros, _VECTOR)
            return scale, builder.fmul(scale, builder.fsub(shift, zeros))
        return scale, _fused(builder, scale, shift, load(builder, at, kind))


def _same(number):
    return _VECTOR([number] * WIDTH)


def _fused(builder, a, b, c):
    return builder.fadd(builder.fmul(a, b, flags=_FUSED), c, flags=_FUSED)
