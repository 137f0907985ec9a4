"""Tile product: a matrix product inside of compiled loops, by SIMD instructions or by AMX.

float32 is multiplied in SIMD lanes (``microkernel.py``), and the bits of bfloat16 in the matrix
unit (``amx.py``), where there is one. AMX needs the left operand by rows. Both need the right one,
of ``LANES`` columns, by rows, AMX in pairs of rows.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import overload

from minivllm.cpu.compiled import compiled_only
from minivllm.cpu.gemm.amx import HAS_AMX, SIDE, amx_multiply_add, pack, turned
from minivllm.cpu.gemm.microkernel import WIDTH, micro_kernel

# Of a tile: its sums, a row of the right and an element of the left one fit into 32 or 16
# registers. The wider it is, the less often is each element of the left one fetched.
ROWS, VECTORS = (4, 4) if WIDTH == 16 else (4, 3)
LANES = VECTORS * WIDTH
_EXACT_IN_BFLOAT16 = (np.uint16, np.uint8, np.int8)  # bfloat16 itself, e4m3, int8
_vector_multiply_add = micro_kernel(ROWS, VECTORS)


def left_dtype(*arrays: np.ndarray) -> type:
    """Dtype of left operands, if these arrays (see ``as_numpy``) are multiplied."""
    by_unit = HAS_AMX and all(array.dtype in _EXACT_IN_BFLOAT16 for array in arrays)
    return np.uint16 if by_unit else np.float32


@compiled_only
def rows_at_a_time(left):
    """Row granularity of the left operand (with AMX of its columns, too)."""


@overload(rows_at_a_time)
def _rows_at_a_time(left):
    rows = SIDE if left.dtype == types.uint16 else ROWS
    return lambda left: rows


@compiled_only
def multiply_add(sums, left, right, num_rows, depth, accumulate):
    """Multiply and add: ``sums[r, c] += left[r, k] * right[k, c]``, for all ``LANES`` columns c.

    ``accumulate=False`` begins at 0.
    """


@overload(multiply_add)
def _multiply_add(sums, left, right, num_rows, depth, accumulate):
    def by_unit(sums, left, right, num_rows, depth, accumulate):
        amx_multiply_add(sums, left, right, num_rows, LANES, depth, accumulate)

    def in_vectors(sums, left, right, num_rows, depth, accumulate):
        for r in range(0, num_rows, ROWS):
            _vector_multiply_add(sums[r:], left[r:], right, depth, accumulate)

    return by_unit if left.dtype == types.uint16 else in_vectors


@compiled_only
def as_right(matrix, num_rows, left):
    """Convert a float32 matrix, in place, to the layout of a right operand beside ``left``."""


@overload(as_right)
def _as_right(matrix, num_rows, left):
    if left.dtype == types.uint16:
        return lambda matrix, num_rows, left: pack(matrix, num_rows, LANES)
    return lambda matrix, num_rows, left: None


@compiled_only
def transposed(left):
    """Transpose of a left operand, as one; perhaps with more columns, uninitialized."""


@overload(transposed)
def _transposed(left):
    return (lambda left: turned(left)) if left.dtype == types.uint16 else (lambda left: left.T)
