"""Micro-kernel: the innermost loop of a GEMM, whose sums stay in the processor's registers.

SIMD instructions multiply and add a vector of elements, twice a cycle, if they need not wait: not
for memory, and not for the sum before. So a tile of sums as large as the registers hold is kept
there for the whole product; each element that is read then serves many. Compilers do not find this
by themselves, so the instructions are written here one by one, in LLVM's language. Attention is
made of it (``tile_product.py``, ``attention/decode.py``), and so are products with weights
(``panels.py``).

(Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008)
"""

from __future__ import annotations

import math

from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic

from minivllm.cpu.compiled import kernel

_host = config.CPU_FEATURES is None  # what is written there wins, even if that is nothing
FEATURES = set((get_host_cpu_features() if _host else config.CPU_FEATURES).split(","))
"""Features of the processor, as far as numba may use them."""
WIDTH = 16 if "+avx512f" in FEATURES else 8 if "+avx" in FEATURES else 4
"""SIMD lanes of float32: how many elements one instruction works on."""
HAS_BFLOAT16 = WIDTH == 16 and "+avx512bf16" in FEATURES
"""True if one instruction multiplies pairs of bfloat16 and adds both products to float32 sums."""

_FLOAT, _WORD, _INT = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_VECTOR, _WORDS = ir.VectorType(_FLOAT, WIDTH), ir.VectorType(_WORD, WIDTH)
_HALVES = ir.VectorType(ir.HalfType(), WIDTH)
_FUSED = ("contract",)  # a product and a sum are one instruction


def micro_kernel(num_rows: int, num_vectors: int):
    """Make a micro-kernel for numba: a product's tile of ``num_rows`` by ``num_vectors * WIDTH``.

    What it returns is called in compiled code, as ``multiply_add(sums, left, right, depth,
    accumulate)``, and does ``sums[r, c] += left[r, k] * right[k, c]`` for all r and c of the tile
    and all k below depth. ``accumulate=False`` begins at 0.

    The sums and left are float32, right of any dtype (see ``as_numpy``). Or the sums are bfloat16,
    rounded in the end, and left and right uint32, pairs of bfloat16 (``HAS_BFLOAT16``). All are
    matrices, also slices and transposes, but a row of the sums and of right must be contiguous.
    """

    @intrinsic
    def multiply_add(typing, sums, left, right, depth, accumulate):
        return types.void(sums, left, right, types.int64, types.boolean), emit

    def emit(context, builder, signature, args):
        (sums, (sums_stride, _)), (left, (left_stride, left_step)), (right, (right_stride, _)) = (
            memory(context, builder, signature, args, i) for i in range(3)
        )
        depth, accumulate = args[3:]
        kind = signature.args[0].dtype

        def columns(array, row, stride):
            """Addresses of the vectors of a row."""
            first = builder.gep(array, [builder.mul(row, stride)])
            return [builder.gep(first, [_INT(v * WIDTH)]) for v in range(num_vectors)]

        places = [columns(sums, _INT(r), sums_stride) for r in range(num_rows)]
        registers = [[cgutils.alloca_once(builder, _VECTOR) for _ in row] for row in places]
        tile = [(r, v) for r in range(num_rows) for v in range(num_vectors)]
        with builder.if_else(accumulate) as (goes_on, begins):
            with goes_on:
                for r, v in tile:
                    builder.store(load(builder, places[r][v], kind), registers[r][v])
            with begins:
                for r, v in tile:
                    builder.store(_VECTOR([0.0] * WIDTH), registers[r][v])
        with cgutils.for_range(builder, depth) as loop:
            there = columns(right, loop.index, right_stride)
            row = [load(builder, at, signature.args[2].dtype) for at in there]
            column = builder.gep(left, [builder.mul(loop.index, left_step)])
            for r in range(num_rows):
                number = builder.load(builder.gep(column, [builder.mul(left_stride, _INT(r))]))
                number = broadcast(builder, number)
                for v in range(num_vectors):
                    total = _add_product(builder, builder.load(registers[r][v]), number, row[v])
                    builder.store(total, registers[r][v])
        for r, v in tile:
            store(builder, builder.load(registers[r][v]), places[r][v], kind)
        return context.get_dummy_value()

    return multiply_add


def _add_product(builder, total, number, row):
    """Add ``number * row``; of pairs, both products."""
    if number.type == _WORDS:
        return _in_bfloat16(builder, "dpbf16ps", result=_VECTOR, values=[total, number, row])
    return builder.fadd(builder.fmul(number, row, flags=_FUSED), total, flags=_FUSED)


def _in_bfloat16(builder, name, result, values):
    """An instruction of AVX512-BF16."""
    kind = ir.FunctionType(result, [value.type for value in values])
    name = f"llvm.x86.avx512bf16.{name}.512"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), values)


@intrinsic
def transpose(typing, columns, rows):
    """Transpose ``WIDTH`` rows of any dtype by ``WIDTH`` columns: ``columns[c, r] = rows[r, c]``.

    Half of a tile changes places with the other half, then half of each half, until single elements
    have. Matrices as in ``micro_kernel``; columns is float32.
    """

    def emit(context, builder, signature, args):
        (to, (stride, _)), (origin, (rows_stride, _)) = (
            memory(context, builder, signature, args, i) for i in range(2)
        )
        starts = [builder.gep(origin, [builder.mul(rows_stride, _INT(r))]) for r in range(WIDTH)]
        tile = [load(builder, at, signature.args[1].dtype) for at in starts]
        step = WIDTH // 2
        while step:
            for r in (r for r in range(WIDTH) if not r & step):
                a, b = tile[r], tile[r + step]
                lows = [c if not c & step else WIDTH + c - step for c in range(WIDTH)]
                highs = [c + step if not c & step else WIDTH + c for c in range(WIDTH)]
                tile[r] = builder.shuffle_vector(a, b, _WORDS(lows))
                tile[r + step] = builder.shuffle_vector(a, b, _WORDS(highs))
            step //= 2
        for c in range(WIDTH):
            store(builder, tile[c], builder.gep(to, [builder.mul(stride, _INT(c))]))
        return context.get_dummy_value()

    return types.void(columns, rows), emit


@kernel
def turn(columns, rows):
    """``transpose`` of a matrix with any numbers of rows and columns that ``WIDTH`` divides."""
    for r in range(0, rows.shape[0], WIDTH):
        for c in range(0, rows.shape[1], WIDTH):
            transpose(columns[c:, r:], rows[r:, c:])


def exp_kernel(num_vectors: int):
    """Make a kernel of softmax weights, for rows of ``num_vectors * WIDTH`` scores, for numba.

    What it returns is called in compiled code, as ``weigh(scores, num_rows, most, scale, total)``,
    and does ``scores[r, c] = exp((scores[r, c] - most[c]) * scale)`` and adds each to ``total[c]``.
    No score is larger than ``most``, and the scale is positive. All are float32, and rows are
    contiguous.
    """

    @intrinsic
    def weigh(typing, scores, num_rows, most, scale, total):
        return types.void(scores, types.int64, most, types.float32, total), emit

    def emit(context, builder, signature, args):
        scores, (stride, _) = memory(context, builder, signature, args, 0)
        most, total = (
            [builder.gep(array, [_INT(v * WIDTH)]) for v in range(num_vectors)]
            for array, _ in (memory(context, builder, signature, args, i) for i in (2, 4))
        )
        scale = broadcast(builder, args[3])
        largest = [load(builder, at) for at in most]
        registers = [cgutils.alloca_once(builder, _VECTOR) for _ in total]
        for at, register in zip(total, registers, strict=True):
            builder.store(load(builder, at), register)
        with cgutils.for_range(builder, args[1]) as loop:
            row = builder.gep(scores, [builder.mul(loop.index, stride)])
            for v in range(num_vectors):
                at = builder.gep(row, [_INT(v * WIDTH)])
                less = builder.fsub(load(builder, at), largest[v])
                weight = _exp(builder, builder.fmul(less, scale))
                store(builder, weight, at)
                builder.store(builder.fadd(builder.load(registers[v]), weight), registers[v])
        for at, register in zip(total, registers, strict=True):
            store(builder, builder.load(register), at)
        return context.get_dummy_value()

    return weigh


def _exp(builder, x):
    """Exponential of x, for x <= 0, as ``compiled.exp``, in fewer instructions.

    Rounding to n and 2 to the n take one each: in a sum with 1.5 * 2^23 there is no place for a
    fraction, and its last bits are n, which is added to the exponent.
    """

    def all_are(number):
        return _VECTOR([number] * WIDTH)

    def fused(a, b, c):
        return builder.fadd(builder.fmul(a, b, flags=_FUSED), c, flags=_FUSED)

    least = all_are(-87.0)  # NaN stays NaN: the comparison is an unordered one
    x = builder.select(builder.fcmp_unordered(">", x, least), x, least)
    shifted = fused(x, all_are(1 / math.log(2)), all_are(1.5 * 2**23))
    n = builder.fsub(shifted, all_are(1.5 * 2**23))
    rest = fused(n, all_are(-math.log(2)), x)
    series = all_are(1 / 720)
    for term in (1 / 120, 1 / 24, 1 / 6, 1 / 2, 1, 1):
        series = fused(series, rest, all_are(term))
    n = builder.shl(builder.bitcast(shifted, _WORDS), _words(23))
    return builder.bitcast(builder.add(builder.bitcast(series, _WORDS), n), _VECTOR)


def memory(context, builder, signature, args, i):
    """Address of argument ``i``, an array, and its strides in elements."""
    array = context.make_array(signature.args[i])(context, builder, args[i])
    size = _INT(getattr(signature.args[i].dtype, "bitwidth", 8) // 8)  # a boolean's is a byte
    strides = cgutils.unpack_tuple(builder, array.strides)
    return array.data, [builder.sdiv(stride, size) for stride in strides]


def load(builder, at, dtype=types.float32):
    """Load a vector as float32, widened as by ``compiled.widen``; pairs of bfloat16 stay so."""
    if dtype in (types.float32, types.uint32):
        kind = _VECTOR if dtype == types.float32 else _WORDS
        return builder.load(builder.bitcast(at, kind.as_pointer()), align=4)
    if dtype in (types.int8, types.uint8):
        return _load_bytes(builder, at, dtype)
    short = ir.VectorType(ir.IntType(16), WIDTH)
    if dtype == types.boolean:  # e5m2 is the upper byte of a float16
        byte = ir.VectorType(ir.IntType(8), WIDTH)
        loaded = builder.load(builder.bitcast(at, byte.as_pointer()), align=1)
        loaded, dtype = builder.shl(builder.zext(loaded, short), short([8] * WIDTH)), types.int16
    else:
        loaded = builder.load(builder.bitcast(at, short.as_pointer()), align=2)
    if dtype == types.int16 and "+f16c" in FEATURES:  # one instruction, not seven
        return builder.fpext(builder.bitcast(loaded, _HALVES), _VECTOR)
    bits = builder.zext(loaded, _WORDS)
    if dtype == types.uint16:  # bfloat16
        return builder.bitcast(builder.shl(bits, _words(16)), _VECTOR)
    size = builder.shl(builder.and_(bits, _words(0x7FFF)), _words(13))
    sign = builder.shl(builder.and_(bits, _words(0x8000)), _words(16))
    special = builder.icmp_unsigned(">=", size, _words(0x7C00 << 13))  # inf and NaN
    exponent = builder.select(special, _words(0x7F800000), _words(0))
    bits = builder.or_(builder.or_(size, sign), exponent)
    number = builder.bitcast(bits, _VECTOR)
    return builder.fmul(number, _VECTOR([2.0**112] * WIDTH))


def _load_bytes(builder, at, dtype):
    """Load a vector of int8, or of e4m3."""
    short = ir.VectorType(ir.IntType(8), WIDTH)
    loaded = builder.load(builder.bitcast(at, short.as_pointer()), align=1)
    byte = builder.sext(loaded, _WORDS)  # the sign goes up to the last bit
    if dtype == types.int8:
        return builder.sitofp(byte, _VECTOR)
    bits = builder.and_(builder.shl(byte, _words(20)), _words(0x87F00000))
    number = builder.fmul(builder.bitcast(bits, _VECTOR), _VECTOR([2.0**120] * WIDTH))
    is_nan = builder.icmp_unsigned("==", builder.and_(bits, _words(0x7F00000)), _words(0x7F00000))
    return builder.select(is_nan, _VECTOR([math.nan] * WIDTH), number)


def _words(number):
    return _WORDS([number] * WIDTH)


def store(builder, vector, at, dtype=types.float32):
    """Store a vector of float32, or round it to bfloat16."""
    if dtype == types.uint16:
        short = ir.VectorType(ir.IntType(16), WIDTH)
        vector = _in_bfloat16(builder, "cvtneps2bf16", result=short, values=[vector])
    builder.store(vector, builder.bitcast(at, vector.type.as_pointer()), align=2)


def broadcast(builder, number):
    """Broadcast an element, a float or a word, to all lanes."""
    nothing = ir.VectorType(number.type, WIDTH)(ir.Undefined)
    first = builder.insert_element(nothing, number, _WORD(0))
    return builder.shuffle_vector(first, nothing, _words(0))
