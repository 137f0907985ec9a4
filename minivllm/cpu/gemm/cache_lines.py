"""Cache lines: memory is read 64 bytes at a time, so alignment and prefetching matter."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from minivllm.cpu.compiled import kernel
from minivllm.cpu.gemm.microkernel import WIDTH, memory

_WORD, _INT = ir.IntType(32), ir.IntType(64)


@intrinsic
def prefetch(typing, matrix, num_rows, num_columns):
    """Prefetch the cache lines of a matrix of any dtype, whose rows are contiguous.

    A processor guesses which lines come next, but not beyond a page, nor through a block table.
    They come into the second cache: some processors can wait for more lines at once there than in
    the first.
    """

    def emit(context, builder, signature, args):
        start, (stride, _) = memory(context, builder, signature, args, 0)
        step = _INT(WIDTH)
        with cgutils.for_range(builder, args[1]) as rows:
            row = builder.gep(start, [builder.mul(stride, rows.index)])
            with cgutils.for_range_slice(builder, _INT(0), args[2], step, inc=True) as (column, _):
                prefetch_line(builder, builder.gep(row, [column]))
        return context.get_dummy_value()

    return types.void(matrix, types.int64, types.int64), emit


def prefetch_line(builder, at):
    """Prefetch the cache line of an address into the second cache."""
    byte = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, _WORD, _WORD, _WORD])
    fetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    to_read, second, data = _WORD(0), _WORD(2), _WORD(1)
    builder.call(fetch, [builder.bitcast(at, byte), to_read, second, data])


@kernel
def aligned(num_rows, num_columns, dtype):
    """Uninitialized matrix that begins at a cache line.

    So no vector in it lies across two lines, which would both be read for it.
    """
    numbers = np.empty(num_rows * num_columns + 64, dtype)
    skipped = -numbers.ctypes.data % 64 // numbers.itemsize  # a line holds 64 bytes
    return numbers[skipped : skipped + num_rows * num_columns].reshape(num_rows, num_columns)
