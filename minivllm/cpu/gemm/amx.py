"""AMX, Intel's matrix unit: products of bfloat16 tiles, on processors that have one.

One instruction multiplies a tile of 16 rows and 32 columns by one of 32 rows and 16 columns, and
adds what comes out to a tile of float32: 8,192 products in 16 cycles, for which vectors of float32
take 256. A tile register holds 16 rows of 64 bytes, and there are eight of them. The right tile is
kept in pairs: the numbers of two rows that follow each other, side by side in 32 bits. The
instructions are Intel's, written in LLVM's language as in ``microkernel.py``.
"""

from __future__ import annotations

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from minivllm.cpu.compiled import kernel
from minivllm.cpu.gemm.cache_lines import aligned
from minivllm.cpu.gemm.microkernel import FEATURES, WIDTH, memory, turn

_NEEDED = {"+amx-tile", "+amx-bf16", "+avx512f"}  # lanes must be whole tiles: vectors of 16 numbers
HAS_AMX = _NEEDED <= FEATURES and torch.cpu._init_amx()
"""True if this processor has AMX, and the operating system lets this process use it."""
SIDE = 32  # of the sums that are made at once, in four tiles; also the depth of a step
_ROWS, _ROW_BYTES = 16, 64  # of a tile register
_BYTE, _INT = ir.IntType(8), ir.IntType(64)
_POINTER = _BYTE.as_pointer()
_WORDS = ir.VectorType(ir.IntType(32), WIDTH)


@intrinsic
def amx_multiply_add(typing, sums, left, right, num_rows, num_columns, depth, accumulate):
    """Multiply and add: ``sums[r, c] += left[r, k] * right[k, c]`` for r, c, k below these sizes.

    ``accumulate=False`` begins at 0. The sums are float32; left is bfloat16, with contiguous rows;
    right is float32 in type and holds pairs, a row for two k (``pack``).
    The sizes are multiples of ``SIDE``.
    """

    def emit(context, builder, signature, args):
        def bytes_of(i, size):
            start, (stride, _) = memory(context, builder, signature, args, i)
            return builder.bitcast(start, _POINTER), builder.mul(stride, _INT(size))

        (sums, sums_stride), (left, left_stride) = bytes_of(0, 4), bytes_of(1, 2)
        right, right_stride = bytes_of(2, 4)
        num_rows, num_columns, depth, accumulate = args[3:]

        def call(name, *args):
            """Emit an instruction of the unit; a tile's number is a part of it."""
            values = [_BYTE(arg) if isinstance(arg, int) else arg for arg in args]
            kind = ir.FunctionType(ir.VoidType(), [value.type for value in values])
            name = f"llvm.x86.{name}"
            builder.call(cgutils.get_or_insert_function(builder.module, kind, name), values)

        squares = [(r, c) for r in range(2) for c in range(2)]  # the sums of tiles 0, 1, 2 and 3

        def place(start, stride, row, in_row):
            return builder.gep(start, [builder.add(builder.mul(row, stride), in_row)])

        def steps(end, step):
            return cgutils.for_range_slice(builder, _INT(0), end, _INT(step), inc=True)

        call("ldtilecfg", _configuration(context, builder))
        with steps(num_rows, SIDE) as (row, _), steps(num_columns, SIDE) as (column, _):
            rows = [builder.add(row, _INT(half * _ROWS)) for half in range(2)]
            first = builder.mul(column, _INT(4))
            columns = [builder.add(first, _INT(half * _ROW_BYTES)) for half in range(2)]
            corners = [place(sums, sums_stride, rows[r], columns[c]) for r, c in squares]
            with builder.if_else(accumulate) as (goes_on, begins):
                with goes_on:
                    for tile, corner in enumerate(corners):
                        call("tileloadd64", tile, corner, sums_stride)
                with begins:
                    for tile in range(4):
                        call("tilezero", tile)
            with steps(depth, SIDE) as (k, _):
                pair = builder.lshr(k, _INT(1))
                for half in range(2):
                    at = place(left, left_stride, rows[half], builder.mul(k, _INT(2)))
                    call("tileloadd64", 4 + half, at, left_stride)
                    at = place(right, right_stride, pair, columns[half])
                    call("tileloadd64", 6 + half, at, right_stride)
                for tile, (r, c) in enumerate(squares):
                    call("tdpbf16ps", tile, 4 + r, 6 + c)
            for tile, corner in enumerate(corners):
                call("tilestored64", tile, corner, sums_stride)
        call("tilerelease")
        return context.get_dummy_value()

    sizes = [types.int64] * 3
    return types.void(sums, left, right, *sizes, types.boolean), emit


def _configuration(context, builder):
    """Address of a tile configuration: all eight tiles have 16 rows of 64 bytes."""
    palette, reserved = np.array([1], np.uint8), np.zeros(15, np.uint8)
    row_bytes = np.array([_ROW_BYTES] * 8 + [0] * 8, np.uint16).view(np.uint8)
    rows = np.array([_ROWS] * 8 + [0] * 8, np.uint8)
    numbers = bytearray(np.concatenate([palette, reserved, row_bytes, rows]).tobytes())
    constant = ir.Constant(ir.ArrayType(_BYTE, len(numbers)), numbers)
    return builder.bitcast(cgutils.global_constant(builder, "tiles", constant), _POINTER)


@intrinsic
def pack(typing, matrix, num_rows, num_columns):
    """Pack rows of a float32 matrix as pairs of bfloat16, in place: rows 2 r and 2 r + 1 are row r.

    The number of rows is even, that of columns a multiple of ``WIDTH``. Ties go up, and there may
    be no NaN with all of its bits set.
    """

    def emit(context, builder, signature, args):
        start, (stride, _) = memory(context, builder, signature, args, 0)

        def place(row, column):
            at = builder.gep(start, [builder.add(builder.mul(row, stride), column)])
            return builder.bitcast(at, _WORDS.as_pointer())

        def rounded(row, column):  # to the nearest, once the lower half is cut off
            bits = builder.load(place(row, column), align=4)
            return builder.add(bits, _WORDS([0x8000] * WIDTH))

        with cgutils.for_range(builder, builder.lshr(args[1], _INT(1))) as pairs:
            even = builder.shl(pairs.index, _INT(1))
            odd = builder.add(even, _INT(1))
            vectors = cgutils.for_range_slice(builder, _INT(0), args[2], _INT(WIDTH), inc=True)
            with vectors as (c, _):
                low = builder.lshr(rounded(even, c), _WORDS([16] * WIDTH))
                high = builder.and_(rounded(odd, c), _WORDS([0xFFFF0000] * WIDTH))
                builder.store(builder.or_(low, high), place(pairs.index, c), align=4)
        return context.get_dummy_value()

    return types.void(matrix, types.int64, types.int64), emit


@kernel
def turned(rows):
    """Transpose of a matrix of 16-bit elements, whose numbers of rows and columns 32 divides.

    It has at least as many columns as that has rows; those after are uninitialized. Two rows are
    one of pairs, and a square of pairs is transposed as 32-bit elements are.
    """
    num_rows, num_columns = rows.shape
    # An odd number of cache lines a row: else all rows could begin in the same place of the cache.
    columns = aligned(num_columns, (num_rows // 32 | 1) * 32, np.uint16)
    to = columns.view(np.float32)
    pairs = aligned(WIDTH, num_columns, np.uint32)
    numbers = pairs.view(np.float32)
    for first in range(0, num_rows, 2 * WIDTH):
        for pair in range(WIDTH):
            even, odd, both = rows[first + 2 * pair], rows[first + 2 * pair + 1], pairs[pair]
            for c in range(num_columns):
                both[c] = np.uint32(even[c]) | (np.uint32(odd[c]) << np.uint32(16))
        turn(to[:, first // 2 :], numbers)
    return columns
