"""Micro-kernels: what is written in vectors is a product, a transpose, an exponential."""

import numpy as np
import pytest
import torch
from helpers import examples
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from minivllm.ops.compiled import as_numpy
from minivllm.ops.microkernel import WIDTH, aligned, exp_kernel, micro_kernel, transpose

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
KERNELS = {(rows, vectors): micro_kernel(rows, vectors) for rows in (1, 4, 8) for vectors in (1, 2)}


def compiled(kernel):
    """A kernel as a function that Python can call."""

    @njit
    def call(*args):
        kernel(*args)

    return call


CALLS = {shape: compiled(kernel) for shape, kernel in KERNELS.items()}
turn, weigh = compiled(transpose), compiled(exp_kernel(2))


@examples(40)
@given(
    shape=st.sampled_from(list(KERNELS)),
    dtype=st.sampled_from(DTYPES),
    depth=st.integers(0, 40),
    is_transposed=st.booleans(),
    accumulate=st.booleans(),
    seed=st.integers(0, 9),
)
def test_a_tile_is_a_product(shape, dtype, depth, is_transposed, accumulate, seed):
    """All three from the middle of wider arrays, left also as a transpose; the rest stays as is."""
    num_rows, columns = shape[0], shape[1] * WIDTH
    rng = torch.Generator().manual_seed(seed)
    sums = torch.randn(num_rows + 3, columns + 5, generator=rng)
    right = torch.randn(depth + 2, columns + 3, generator=rng).to(dtype)
    size = (depth + 2, num_rows + 5) if is_transposed else (num_rows + 2, depth + 5)
    left = torch.randn(*size, generator=rng)
    strides = (1, size[1]) if is_transposed else (size[1], 1)
    factor = left[2:, 3 : 3 + num_rows].T if is_transposed else left[2:, 3 : 3 + depth]
    expected = sums.clone()
    tile = expected[1 : 1 + num_rows, 4 : 4 + columns]
    tile[:] = factor @ right[1 : 1 + depth, 2 : 2 + columns].float() + tile * accumulate
    CALLS[shape](
        sums.numpy(), sums.stride(0) + 4, sums.stride(0),
        left.numpy(), 2 * size[1] + 3, *strides,
        as_numpy(right), right.stride(0) + 2, right.stride(0), depth, accumulate,
    )  # fmt: skip
    torch.testing.assert_close(sums, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_transpose(dtype):
    rng = torch.Generator().manual_seed(0)
    rows = torch.randn(WIDTH + 1, WIDTH + 7, generator=rng).to(dtype)
    columns = torch.zeros(WIDTH + 2, WIDTH + 3)
    turn(columns.numpy(), columns.stride(0) + 2, columns.stride(0),
         as_numpy(rows), rows.stride(0) + 5, rows.stride(0))  # fmt: skip
    expected = torch.zeros_like(columns)
    expected[1 : 1 + WIDTH, 2 : 2 + WIDTH] = rows[1:, 5 : 5 + WIDTH].float().T
    torch.testing.assert_close(columns, expected, rtol=0, atol=0)


def test_the_weights_of_a_softmax():
    """From 0 to where float32 ends; what is less, or masked, weighs next to nothing."""
    num_rows, lanes = 9, 2 * WIDTH
    less = np.append(np.linspace(0, -86, num_rows * lanes - 2), [-1000, -np.inf]).astype(np.float32)
    most = np.linspace(-5, 5, lanes).astype(np.float32)
    scores = (less.reshape(num_rows, lanes) + most).ravel()
    wanted = np.exp((scores.reshape(num_rows, lanes) - most).astype(np.float64))
    total = np.ones(lanes, np.float32)
    weigh(scores, 0, num_rows, most, total)
    np.testing.assert_allclose(scores.reshape(num_rows, lanes), wanted, rtol=2e-6, atol=1e-37)
    np.testing.assert_allclose(total, 1 + wanted.sum(axis=0), rtol=1e-5)


def test_memory_begins_where_a_cache_line_does():
    assert all(aligned(n).ctypes.data % 64 == 0 and len(aligned(n)) == n for n in range(0, 99, 7))
