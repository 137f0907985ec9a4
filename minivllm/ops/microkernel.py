"""Micro-kernel: the innermost product of matrices, whose sums stay in the processor's registers.

A processor multiplies and adds a vector of numbers at once, twice a cycle, if it need not wait: not
for memory, and not for the sum before. So a tile of sums as large as the registers hold is kept
there for the whole product; each number that is read then serves many. Compilers do not find this
by themselves, so the instructions are written here one by one, in LLVM's language. Attention to
prompts is made of it (``attention/prefill_numba.py``).

(Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008)
"""

from __future__ import annotations

import numpy as np
from llvmlite import binding, ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

from minivllm.ops.compiled import kernel

_features = (config.CPU_FEATURES or binding.get_host_cpu_features().flatten()).split(",")
# numbers of a vector, vectors of a row, rows: the sums, a row of the right and a number of the left
# one fill the 32 or 16 registers
if "+avx512f" in _features:
    WIDTH, _VECTORS, ROWS = 16, 2, 8
elif "+avx" in _features:
    WIDTH, _VECTORS, ROWS = 8, 3, 4
else:
    WIDTH, _VECTORS, ROWS = 4, 3, 4
LANES = WIDTH * _VECTORS
"""Columns of a tile, that is numbers side by side in each row of it."""

_FLOAT, _INT = ir.FloatType(), ir.IntType(64)
_VECTOR = ir.VectorType(_FLOAT, WIDTH)


@intrinsic
def multiply_add(
    typing, sums, sums_row, left, left_at, row_stride, stride, right, depth, accumulate
):
    """``sums[r, l] += left[r, k] * right[k, l]`` for ``ROWS`` rows, all lanes and k below depth.

    Args:
        sums: a float32 panel: rows of ``LANES``, side by side.
        sums_row: the tile's first row in it.
        left: float32, contiguous, of any shape: ``left[r, k]`` stands at ``left_at + r * row_stride
            + k * stride`` in its memory.
        right: a panel, too; its rows are k.
        accumulate: False begins at 0.
    """
    number = types.int64
    args = (sums, number, left, number, number, number, right, number, types.boolean)
    return types.void(*args), _emit


def _emit(context, builder, signature, args):
    _, sums_row, _, left_at, row_stride, stride, _, depth, accumulate = args
    sums, left, right = (
        context.make_array(signature.args[i])(context, builder, args[i]).data for i in (0, 2, 6)
    )

    def vector(base, *offsets):
        at = base
        for offset in offsets:
            at = builder.gep(at, [offset])
        return builder.bitcast(at, _VECTOR.as_pointer())

    sums = builder.gep(sums, [builder.mul(sums_row, _INT(LANES))])
    left = builder.gep(left, [left_at])
    tile = [(r, v) for r in range(ROWS) for v in range(_VECTORS)]
    registers = {at: cgutils.alloca_once(builder, _VECTOR) for at in tile}
    with builder.if_else(accumulate) as (goes_on, begins):
        with goes_on:
            for r, v in tile:
                before = builder.load(vector(sums, _INT(r * LANES + v * WIDTH)), align=4)
                builder.store(before, registers[r, v])
        with begins:
            for at in tile:
                builder.store(_VECTOR([0.0] * WIDTH), registers[at])
    with cgutils.for_range(builder, depth) as loop:
        row = builder.mul(loop.index, _INT(LANES))
        column = builder.gep(left, [builder.mul(loop.index, stride)])
        rights = [
            builder.load(vector(right, row, _INT(v * WIDTH)), align=4) for v in range(_VECTORS)
        ]
        for r in range(ROWS):
            number = builder.load(builder.gep(column, [builder.mul(row_stride, _INT(r))]))
            everywhere = _broadcast(builder, number)
            for v in range(_VECTORS):
                product = builder.fmul(everywhere, rights[v], flags=("contract",))
                total = builder.fadd(product, builder.load(registers[r, v]), flags=("contract",))
                builder.store(total, registers[r, v])
    for r, v in tile:
        after = builder.load(registers[r, v])
        builder.store(after, vector(sums, _INT(r * LANES + v * WIDTH)), align=4)
    return context.get_dummy_value()


def _broadcast(builder, number):
    """One number in all places of a vector."""
    first = builder.insert_element(_VECTOR(ir.Undefined), number, ir.IntType(32)(0))
    places = ir.VectorType(ir.IntType(32), WIDTH)([0] * WIDTH)
    return builder.shuffle_vector(first, _VECTOR(ir.Undefined), places)


@kernel
def panel(num_rows):
    """Float32 rows of ``LANES``, uninitialized; no vector in them straddles two cache lines."""
    memory = np.empty(num_rows * LANES + 16, np.float32)
    skipped = (-(memory.ctypes.data // 4)) % 16  # a line holds 64 bytes
    return memory[skipped : skipped + num_rows * LANES]
