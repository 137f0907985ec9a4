"""Words of a panel of few bits, in the processor's registers.

A word of 32 bits holds eight rows (nibbles, 4 bits, from 0 to 15) or four rows (bytes, a signed
number plus 128, or a float of 8 bits, e4m3) of one column, the first row lowest. So a vector of
words is a few rows of as many columns, and becomes one vector of floats a row.

Words are int32 for nibbles, uint8 for bytes and int8 for e4m3. Scales are of any float dtype, see
``as_numpy``. The dtype of ``mins`` says what they are: int8 for the zero points of
``(q - zero) * scale``, a float for the minimums of ``q * scale + min``, and uint8 for an empty
array: then the zero point is 8 for nibbles and 0 for bytes.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils

from minivllm.cpu.gemm.cache_lines import prefetch_line
from minivllm.cpu.gemm.microkernel import WIDTH, load, memory

_BYTE, _WORD, _INT = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_VECTOR, _WORDS = ir.VectorType(ir.FloatType(), WIDTH), ir.VectorType(_WORD, WIDTH)
_BYTES, _SOME_BYTES = ir.VectorType(_BYTE, 4 * WIDTH), ir.VectorType(_BYTE, WIDTH)
_AHEAD = 4096  # words from where a panel is read to where it is prefetched
# Subtracted from each nibble for nothing, where a table holds its sixteen numbers.
_CENTRE = 8 if WIDTH == 16 else 0


class Words:
    """Words of a panel, argument ``i`` of a kernel: a matrix whose rows are contiguous."""

    def __init__(self, context, builder, signature, args, i):
        self.builder = builder
        words, (stride, _) = memory(context, builder, signature, args, i)
        self.are_nibbles = signature.args[i].dtype == types.int32
        self.are_floats = signature.args[i].dtype == types.int8
        self.rows_per_word = 8 if self.are_nibbles else 4
        self.half = 8 if self.are_nibbles else 128  # how integers are above the signed ones
        self._words = builder.bitcast(words, _WORD.as_pointer())
        self._stride = stride if self.are_nibbles else builder.sdiv(stride, _INT(4))
        self.num_words = length(context, builder, signature, args, i)

    def word(self, row, v):
        """Words ``v * WIDTH`` to ``(v + 1) * WIDTH - 1`` of a row."""
        at = self.builder.add(self.builder.mul(row, self._stride), _INT(v * WIDTH))
        at = self.builder.gep(self._words, [at])
        if v * WIDTH % 16 == 0:  # a cache line holds 16 words
            prefetch_line(self.builder, self.builder.gep(at, [_INT(_AHEAD)]))
        return self.builder.load(self.builder.bitcast(at, _WORDS.as_pointer()), align=4)

    def bytes(self, word):
        """Unsigned bytes of the words' integers: of nibbles first the even ones, then the odd."""
        if not self.are_nibbles:
            return [word]
        high = self.builder.lshr(word, _WORDS([4] * WIDTH))
        return [self.builder.and_(part, _WORDS([0x0F0F0F0F] * WIDTH)) for part in (word, high)]

    def numbers(self, word, i):
        """Numbers in place ``i`` of the words, as float32."""
        builder = self.builder
        if self.are_floats:
            return self.e4m3(self.byte(word, i))
        if not self.are_nibbles:
            return builder.sitofp(self.byte(word, i), _VECTOR)
        if WIDTH < 16:  # all even or all odd nibbles of a word become bytes
            low = builder.lshr(word, _WORDS([4 * (i % 2)] * WIDTH))
            low = builder.and_(low, _WORDS([0x0F0F0F0F] * WIDTH))
            return builder.sitofp(self.byte(low, i // 2), _VECTOR)
        # One instruction looks all numbers up in a register, by the lowest 4 bits of each word.
        kind, name = ir.FunctionType(_VECTOR, [_VECTOR, _WORDS]), "llvm.x86.avx512.permvar.sf.512"
        look_up = cgutils.get_or_insert_function(builder.module, kind, name)
        table = _VECTOR([float(q - _CENTRE) for q in range(16)])
        return builder.call(look_up, [table, builder.lshr(word, _WORDS([4 * i] * WIDTH))])

    def e4m3(self, bits):
        """Floats of 8 bits as float32: in their places, times what the exponents' biases differ."""
        builder = self.builder
        size = builder.shl(builder.and_(bits, _WORDS([0x7F] * WIDTH)), _WORDS([20] * WIDTH))
        sign = builder.shl(builder.and_(bits, _WORDS([0x80] * WIDTH)), _WORDS([24] * WIDTH))
        number = builder.bitcast(builder.or_(size, sign), _VECTOR)
        return builder.fmul(number, same_number(2.0**120))

    def byte(self, word, i):
        """Bytes in place ``i``, as words: one instruction shuffles zeros in beside them."""
        builder = self.builder
        places = [4 * WIDTH] * (4 * WIDTH)
        places[::4] = range(i, 4 * WIDTH, 4)
        places = ir.VectorType(_WORD, 4 * WIDTH)(places)
        zeros = _BYTES([0] * (4 * WIDTH))
        low = builder.shuffle_vector(builder.bitcast(word, _BYTES), zeros, places)
        return builder.bitcast(low, _WORDS)


class QuantizedPanel(Words):
    """Words, scales and mins of a panel, arguments 2, 3 and 4 of a kernel."""

    def __init__(self, context, builder, signature, args):
        super().__init__(context, builder, signature, args, 2)
        self._arrays = {i: memory(context, builder, signature, args, i) for i in (3, 4)}
        self._dtypes = signature.args
        self.num_groups = length(context, builder, signature, args, 3)

    def scale_and_offset(self, group, v, are_centred=False):
        """Scale and offset by which numbers of vector v become weights; None for no offset.

        Numbers are as from ``numbers``, or centred: integers less ``half``.
        """
        builder = self.builder

        def place(i):
            start, (stride, _) = self._arrays[i]
            at = builder.gep(start, [builder.add(builder.mul(group, stride), _INT(v * WIDTH))])
            prefetch_line(builder, builder.gep(at, [_INT(_AHEAD // 8)]))
            return at

        scale = load(builder, place(3), self._dtypes[3].dtype)
        kind = self._dtypes[4].dtype
        # q less what ``numbers`` gives
        shift = float(_CENTRE if self.are_nibbles else 0 if self.are_floats else -128)
        if are_centred:
            shift = 8.0 if self.are_nibbles else 0.0
        if kind == types.uint8:
            difference = shift - (8 if self.are_nibbles else 0)
            return scale, builder.fmul(scale, same_number(difference)) if difference else None
        shift, at = same_number(shift), place(4)
        if kind == types.int8:
            zeros = builder.load(builder.bitcast(at, _SOME_BYTES.as_pointer()), align=1)
            zeros = builder.sitofp(zeros, _VECTOR)
            return scale, builder.fmul(scale, builder.fsub(shift, zeros))
        return scale, fused(builder, scale, shift, load(builder, at, kind))


def length(context, builder, signature, args, i):
    """Number of rows of argument ``i``, an array."""
    shape = context.make_array(signature.args[i])(context, builder, args[i]).shape
    return cgutils.unpack_tuple(builder, shape)[0]


def same_number(number: float):
    """Vector with this number in each lane."""
    return _VECTOR([number] * WIDTH)


def fused(builder, a, b, c):
    """``a * b + c`` in one instruction."""
    return builder.fadd(builder.fmul(a, b, flags=("contract",)), c, flags=("contract",))
