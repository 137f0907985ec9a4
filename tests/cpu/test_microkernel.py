"""Micro-kernels: what is written in vectors is a product, a transpose, an exponential."""

import numpy as np
import pytest
import torch
from helpers import examples
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from minivllm.cpu.gemm import microkernel
from minivllm.cpu.gemm.cache_lines import aligned
from minivllm.cpu.gemm.microkernel import WIDTH, exp_kernel, micro_kernel, transpose
from minivllm.utils.tensors import as_numpy

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
KERNELS = {(rows, vectors): micro_kernel(rows, vectors) for rows in (1, 4, 6) for vectors in (1, 2)}


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
    """All three are slices of wider matrices, left also as a transpose; the rest stays as it is."""
    num_rows, columns = shape[0], shape[1] * WIDTH
    rng = torch.Generator().manual_seed(seed)
    sums = torch.randn(num_rows + 3, columns + 5, generator=rng)
    right = torch.randn(depth + 2, columns + 3, generator=rng).to(dtype)
    size = (depth + 2, num_rows + 5) if is_transposed else (num_rows + 2, depth + 5)
    left = torch.randn(*size, generator=rng)
    factor = left[2:, 3 : 3 + num_rows].T if is_transposed else left[2:, 3 : 3 + depth]
    expected = sums.clone()
    tile = expected[1 : 1 + num_rows, 4 : 4 + columns]
    tile[:] = factor @ right[1 : 1 + depth, 2 : 2 + columns].float() + tile * accumulate
    CALLS[shape](sums.numpy()[1:, 4:], factor.numpy(), as_numpy(right)[1:, 2:], depth, accumulate)
    torch.testing.assert_close(sums, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("features", [microkernel.FEATURES, microkernel.FEATURES - {"+f16c"}])
def test_vectors_widen_every_number(dtype, features, monkeypatch):
    """All 16-bit patterns, also denormals, inf and NaN, stand for what they do in torch."""
    monkeypatch.setattr(microkernel, "FEATURES", features)
    turn = compiled(transpose)
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype).view(-1, WIDTH, WIDTH)
    found = torch.empty(numbers.shape)
    for rows, columns in zip(numbers, found, strict=True):
        turn(columns.numpy(), as_numpy(rows))
    expected = numbers.float().mT
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_transpose(dtype):
    rng = torch.Generator().manual_seed(0)
    rows = torch.randn(WIDTH + 1, WIDTH + 7, generator=rng).to(dtype)
    columns = torch.zeros(WIDTH + 2, WIDTH + 3)
    turn(columns.numpy()[1:, 2:], as_numpy(rows)[1:, 5:])
    expected = torch.zeros_like(columns)
    expected[1 : 1 + WIDTH, 2 : 2 + WIDTH] = rows[1:, 5 : 5 + WIDTH].float().T
    torch.testing.assert_close(columns, expected, rtol=0, atol=0)


def test_the_weights_of_a_softmax():
    """From 0 to where float32 ends; what is less, or masked, weighs next to nothing."""
    num_rows, lanes, scale = 9, 2 * WIDTH, np.float32(0.25)
    less = np.append(np.linspace(0, -344, num_rows * lanes - 2), [-4000, -np.inf])
    most = np.linspace(-5, 5, lanes).astype(np.float32)
    scores = less.astype(np.float32).reshape(num_rows, lanes) + most
    wanted = np.exp((scores - most).astype(np.float64) * scale)
    total = np.ones(lanes, np.float32)
    weigh(scores, num_rows, most, scale, total)
    np.testing.assert_allclose(scores, wanted, rtol=2e-6, atol=1e-37)
    np.testing.assert_allclose(total, 1 + wanted.sum(axis=0), rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
def test_a_matrix_begins_where_a_cache_line_does(dtype):
    for n in range(0, 99, 7):
        matrix = aligned(n, 5, dtype)
        assert matrix.shape == (n, 5)
        assert matrix.dtype == dtype
        assert matrix.ctypes.data % 64 == 0
