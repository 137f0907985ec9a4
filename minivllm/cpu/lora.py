"""Products of adapters in compiled loops: a shrink and an expand for each adapter of a step.

Rows of one adapter are gathered side by side, some at a time, so that each element of A and of B
that is read serves several of them. (The definition: ``LoRALinearMethod.add_adapters``.)

This file is imported only when it is used: numba need not be there.
"""

from __future__ import annotations

import numpy as np

from minivllm.cpu.compiled import kernel, parallel_kernel
from minivllm.cpu.gemm.microkernel import WIDTH, micro_kernel
from minivllm.cpu.sharing import shared_range
from minivllm.lora.layers import LoRALinearMethod
from minivllm.models.linear import ArrayProduct
from minivllm.utils.tensors import as_numpy

WORTH_SHARING = 2**18  # multiply-adds that are worth several threads: rows are gathered, too
ROWS, LANES = 8, 4 * WIDTH  # rows that are gathered, and columns that are expanded, at a time
_shrink = micro_kernel(ROWS, 1)  # as many sums as hide that each takes a while
_shrink_one = micro_kernel(1, 1)
_expand, _expand_one = micro_kernel(4, 4), micro_kernel(1, 4)


def add_adapters_to(product: ArrayProduct, method: LoRALinearMethod) -> ArrayProduct:
    """A float32 product of arrays to which the adapters of some rows are added."""
    a, b = as_numpy(method.a), as_numpy(method.b)
    ends = np.cumsum(list(method.parts.values()))
    begins = np.append(0, ends[:-1])
    rows = method.rows

    def with_adapters(x: np.ndarray) -> np.ndarray:
        y = product(x)
        if (metadata := rows.metadata) is not None:
            ranks = method.ranks[metadata.slots]
            indices = metadata.rows.numpy()
            work = len(indices) * (a[0].size + b[0].size)
            _add_adapters(
                work,
                y, x, a, b, begins, ends,
                indices, metadata.starts, metadata.slots, ranks,
            )  # fmt: skip
        return y

    return with_adapters


@parallel_kernel(WORTH_SHARING)
def _add_adapters(share, y, x, a, b, begins, ends, rows, starts, slots, ranks):
    num_blocks = 0
    for s in range(len(slots)):
        num_blocks += -(-(starts[s + 1] - starts[s]) // ROWS)
    blocks = np.empty((num_blocks, 2), np.int64)  # the adapter of each, and its first row
    n = 0
    for s in range(len(slots)):
        for first in range(starts[s], starts[s + 1], ROWS):
            blocks[n, 0], blocks[n, 1] = s, first
            n += 1
    for task in shared_range(share, num_blocks):
        s, first = blocks[task, 0], blocks[task, 1]
        if ranks[s] > 0:
            some = rows[first : min(first + ROWS, starts[s + 1])]
            _add_to_rows(
                y, x, a[slots[s]], b=b[slots[s]], begins=begins, ends=ends, rows=some, rank=ranks[s]
            )


@kernel
def _add_to_rows(y, x, a, b, begins, ends, rows, rank):
    """Add one adapter's product to at most ``ROWS`` rows."""
    depth, num_rows = x.shape[1], len(rows)
    room = a.shape[1] // len(begins)  # columns of A that a part has
    gathered = np.empty((ROWS, depth), np.float32)
    if num_rows > 1:
        gathered[num_rows:] = 0
    for r in range(num_rows):
        gathered[r] = x[rows[r]]
    shrunk = np.empty((ROWS, room), np.float32)
    sums, wide = np.empty((4, LANES), np.float32), np.empty((room, LANES), b.dtype)
    for part in range(len(begins)):
        for c in range(0, rank, WIDTH):
            some = a[:, part * room + c :]
            if num_rows > 1:
                _shrink(shrunk[:, c:], gathered, some, depth, False)
            else:
                _shrink_one(shrunk[:, c:], gathered, some, depth, False)
        for column in range(begins[part], ends[part], LANES):
            size = min(LANES, ends[part] - column)
            right = b[:, column:]
            if size < LANES:  # the last columns of a part
                wide[:rank, :size] = right[:rank, :size]
                right = wide[:, 0:]
            for r in range(0, num_rows, 4):
                if num_rows - r > 1:
                    _expand(sums, shrunk[r:], right, rank, False)
                else:
                    _expand_one(sums, shrunk[r:], right, rank, False)
                for i in range(min(4, num_rows - r)):
                    target = y[rows[r + i]]
                    for j in range(size):
                        target[column + j] += sums[i, j]
