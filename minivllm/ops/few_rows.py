"""Product of a few rows with a weight of 16 bits, whose numbers are widened in registers.

A decode has a few rows, so the product takes as long as the weight takes to be read. Here it is
read once, as it is kept, and never written anywhere as float32. See ``ops/microkernel.py``.

This file is imported only when it is used: numba need not be there.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import prange

from minivllm.ops.compiled import as_numpy, parallel_kernel
from minivllm.ops.microkernel import WIDTH, dot_kernel

MOST_ROWS = 32  # with more of them a weight that is widened tile by tile is faster
WORTH_SHARING = 2**18  # products from which on several threads are woken: some 20 us of work
# Sums, a vector of each of the weight's rows and one of the others fit into the registers.
_WEIGHTS, _ROWS = (4, 4) if WIDTH == 16 else (2, 4)
_TASK = 32  # rows of the weight
_dots = dot_kernel(_WEIGHTS, _ROWS)


def fits(weight: torch.Tensor) -> bool:
    """Whether vectors divide the weight's rows, and tiles their number, ``[output, input]``."""
    output_size, input_size = weight.shape
    return input_size % WIDTH == 0 and output_size % _WEIGHTS == 0


def multiply(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``x @ weight.T`` in float32, ``[n, output]``, for a 16-bit weight that ``fits``."""
    rows = x.new_zeros(-(-len(x) // _ROWS) * _ROWS, x.shape[1], dtype=torch.float32)
    rows[: len(x)] = x
    output = np.empty((len(rows), len(weight)), np.float32)
    _multiply(len(rows) * weight.numel(), output, rows.numpy(), as_numpy(weight))
    return torch.from_numpy(output)[: len(x)]


@parallel_kernel(WORTH_SHARING)
def _multiply(output, rows, weight):
    num_rows, depth = rows.shape
    for task in prange(-(-len(weight) // _TASK)):
        for w in range(task * _TASK, min(len(weight), (task + 1) * _TASK), _WEIGHTS):
            for r in range(0, num_rows, _ROWS):
                _dots(output[r:, w:].T, weight[w:], rows[r:], depth)
