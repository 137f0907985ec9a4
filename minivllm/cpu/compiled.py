"""Compiled loops, their common parts: numba's options, threads, 16-bit elements, exp.

Machine code is kept on disk, beside the source or where ``NUMBA_CACHE_DIR`` says, so that only the
first process compiles. (numba notices a change of the file that a loop is in, but not of those it
uses: after a change here or of a micro-kernel in ``gemm/``, delete ``__pycache__``.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps

import numpy as np
import torch
from numba import config, njit, types
from numba.extending import overload

from minivllm.cpu import compiling as compiling  # people who wait are told
from minivllm.cpu.sharing import ALL_ALONE, by_threads, start_threads
from minivllm.utils.tensors import as_numpy

# Sums may be reordered, which is what lets SIMD lanes add up in parallel; the rest of
# fastmath (no NaN, no infinity) is not wanted. numpy's error model divides without a check for 0.
_OPTIONS = {"fastmath": {"reassoc", "contract"}, "error_model": "numpy", "nogil": True}
_LN2 = math.log(2)
start_threads()


def kernel(function: Callable) -> Callable:
    """Compile a function when it is first called, for the types it is called with.

    While it runs the interpreter lock is free, as in torch's own operations: a server's event loop
    answers meanwhile.
    """
    try:
        return njit(function, cache=True, **_OPTIONS)
    except RuntimeError:  # no folder to keep the machine code in: this process compiles for itself
        return njit(function, **_OPTIONS)


def part_of_kernel(function: Callable) -> Callable:
    """Make a function a part of each kernel that calls it, for compiled code only.

    A kernel that another one calls is compiled twice: by itself, and within that one.
    """
    return njit(function, inline="always", **_OPTIONS)


def parallel_kernel(worth_sharing: int) -> Callable[[Callable], Callable[..., None]]:
    """Decorator: a kernel with ``shared_range``, by torch's number of threads or by one.

    A thread must be woken, and waited for: on a busy machine that can take longer than the work. So
    little work is done by one. A kernel has its share as its first argument, and is called with its
    work in place of that.

    Args:
        worth_sharing: the work from which on there are several threads.
    """

    def decorate(function: Callable) -> Callable[..., None]:
        loop = kernel(function)

        @wraps(function)
        def run(work: int, *args) -> None:
            share = ALL_ALONE
            if work >= worth_sharing and (num_threads := torch.get_num_threads()) > 1:
                share = by_threads(min(num_threads, config.NUMBA_NUM_THREADS))
            loop(share, *args)

        return run

    return decorate


def flat(x: torch.Tensor) -> tuple[np.ndarray, int]:
    """Return the memory of a view with at least a row, and the stride from row to row.

    Numba makes good code only of what it knows to be contiguous. Rows of ``x`` are, all of it need
    not be: queries are a slice of each row of a wider matrix.
    """
    num_rows, stride = x.size(0), x.stride(0)
    length = (num_rows - 1) * stride + x.numel() // num_rows
    return as_numpy(x.as_strided((length,), (1,))), stride


def row_numbers(rows: torch.Tensor | slice) -> np.ndarray:
    """Row numbers of a batch, given as int64 or as a slice: int64 ``[n]``."""
    return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows.numpy()


def compiled_only(function: Callable) -> Callable:
    """Decorator: a function for compiled code only, where its ``overload`` is taken."""

    @wraps(function)
    def refuse(*args):
        raise TypeError(f"{function.__name__} is for compiled code only")

    return refuse


@compiled_only
def widen(number):
    """Element of an ``as_numpy`` array as float32."""


@overload(widen)
def _widen(number):
    if number == types.uint16:  # bfloat16 is the upper half of a float32
        return lambda number: np.uint32(np.uint32(number) << 16).view(np.float32)
    if number == types.int16:
        # float16: move exponent and fraction to where float32 has them, and make up for the other
        # bias of the exponent (15, not 127) with one multiplication. The largest exponent, that of
        # inf and NaN, is the largest there, too.
        def convert(number):
            half = np.uint32(number)
            bits = ((half & 0x7FFF) << 13) | ((half & 0x8000) << 16)
            bits |= np.uint32(0x7F800000) if (half & 0x7C00) == 0x7C00 else np.uint32(0)
            return np.uint32(bits).view(np.float32) * np.float32(2.0**112)

        return convert
    if number == types.uint8:
        # e4m3: as float16, but for another bias (7), and the only NaN is the largest of all
        def convert_e4m3(number):
            byte = np.uint32(number)
            bits = ((byte & 0x7F) << 20) | ((byte & 0x80) << 24)
            wide = np.uint32(bits).view(np.float32) * np.float32(2.0**120)
            return np.float32(np.nan) if (byte & 0x7F) == 0x7F else wide

        return convert_e4m3
    if number == types.int8:
        return lambda number: np.float32(number)
    return lambda number: number


@compiled_only
def narrow(number, array):
    """Element for this ``as_numpy`` array, of a float32: float32, or bfloat16's bits."""


@overload(narrow)
def _narrow(number, array):
    if array.dtype == types.uint16:  # to the nearest, and of two as near to the even one

        def convert(number, array):
            bits = np.float32(number).view(np.uint32)
            rounded = np.uint16((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16)
            return np.uint16(0x7FC0) if number != number else rounded  # NaN stays one

        return convert
    return lambda number, array: np.float32(number)


@kernel
def exp(x):
    """Exponential of x, for x <= 0, in SIMD lanes; the library's takes one element a call.

    x is n times ln 2, which goes into the exponent bits of a float32, and a rest r of at most half
    of ln 2, for which six terms of the series are exact to 5e-7.
    """
    x = max(x, np.float32(-87))  # e to the -87 is about the smallest normal float32
    n = np.floor(x * np.float32(1 / _LN2) + np.float32(0.5))
    r = x - n * np.float32(_LN2)
    series = np.float32(1 / 720)  # 1 + r (1 + r (1/2 + r (1/6 + ...)))
    series = series * r + np.float32(1 / 120)
    series = series * r + np.float32(1 / 24)
    series = series * r + np.float32(1 / 6)
    series = series * r + np.float32(1 / 2)
    series = series * r + np.float32(1)
    series = series * r + np.float32(1)
    return series * np.int32((np.int32(n) + 127) << 23).view(np.float32)
