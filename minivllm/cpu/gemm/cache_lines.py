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
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, _WORD, _WORD, _WORD])
        fetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        step, to_read, second, data = _INT(WIDTH), _WORD(0), _WORD(2), _WORD(1)
        with cgutils.for_range(builder, args[1]) as rows:
            row = builder.gep(start, [builder.mul(stride, rows.index)])
            with cgutils.for_range_slice(builder, _INT(0), args[2], step, inc=True) as (column, _):
                at = builder.bitcast(builder.gep(row, [column]), byte)
                builder.call(fetch, [at, to_read, second, data])
        return context.get_dummy_value()

    return types.void(matrix, types.int64, types.int64), emit


@kernel
def aligned(num_rows, num_columns, dtype):
    """Uninitialized matrix that begins at a cache line.

    So no vector in it lies across two lines, which would both be read for it.
    """
    numbers = np.empty(num_rows * num_columns + 64, dtype)
    skipped = -numbers.ctypes.data % 64 // numbers.itemsize  # a line holds 64 bytes
    return numbers[skipped : skipped + num_rows * num_columns].reshape(num_rows, num_columns)
