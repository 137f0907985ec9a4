"""Matrix unit: what it multiplies, and the forms it wants its matrices in."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from helpers import examples
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from minivllm.cpu.gemm import amx
from minivllm.cpu.gemm.amx import HAS_AMX, SIDE, turned
from minivllm.utils.tensors import as_numpy


@njit
def pack(matrix, num_rows, num_columns):
    amx.pack(matrix, num_rows, num_columns)


@njit
def multiply_add(sums, left, right, *sizes_and_accumulate):
    amx.amx_multiply_add(sums, left, right, *sizes_and_accumulate)


def test_pairs_are_of_two_rows_each_number_the_nearest():
    matrix = torch.randn(8, 35, generator=torch.Generator().manual_seed(0))
    pairs = matrix.clone()
    pack(pairs.numpy()[:, 1:], 6, 32)
    words = torch.from_numpy(pairs.numpy()[:3, 1:33].view(np.uint16).reshape(3, 32, 2))
    expected = matrix[:6, 1:33].bfloat16().view(torch.uint16).unflatten(0, (3, 2))
    assert torch.equal(words, expected.transpose(1, 2))
    assert torch.equal(pairs[3:], matrix[3:])
    assert torch.equal(pairs[:, 0], matrix[:, 0])


@pytest.mark.parametrize("num_rows", [32, 64, 96])
@pytest.mark.parametrize("num_columns", [32, 64])
def test_a_matrix_of_16_bits_is_turned(num_rows, num_columns):
    matrix = np.random.default_rng(0).integers(0, 2**16, (num_rows, num_columns)).astype(np.uint16)
    np.testing.assert_array_equal(turned(matrix)[:, :num_rows], matrix.T)


@pytest.mark.skipif(not HAS_AMX, reason="this processor has none")
@examples(40)
@given(
    sizes=st.tuples(*[st.integers(1, 3).map(lambda n: n * SIDE)] * 3),
    accumulate=st.booleans(),
    seed=st.integers(0, 9),
)
def test_tiles_are_a_product(sizes, accumulate, seed):
    """All three are slices of wider matrices; the rest stays as it is, and torch's products too."""
    num_rows, num_columns, depth = sizes
    rng = torch.Generator().manual_seed(seed)
    sums = torch.randn(num_rows + 3, num_columns + 5, generator=rng)
    left = torch.randn(num_rows + 2, depth + 5, generator=rng).bfloat16()
    right = torch.randn(depth, num_columns, generator=rng).bfloat16()
    expected = sums.clone()
    tile = expected[1 : 1 + num_rows, 4 : 4 + num_columns]
    tile[:] = left[2:, 3 : 3 + depth].float() @ right.float() + tile * accumulate
    pairs = right.float().numpy()
    pack(pairs, depth, num_columns)
    factor = as_numpy(left)[2:, 3 : 3 + depth]
    multiply_add(sums.numpy()[1:, 4:], factor, pairs, *sizes, accumulate)
    torch.testing.assert_close(sums, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(left @ left.T, (left.float() @ left.float().T).bfloat16())


def test_the_unit_and_vectors_are_used_as_far_as_numba_may():
    """Its instructions cannot be compiled for a processor that is said to have none."""
    names = "HAS_AMX, WIDTH"
    code = f"from minivllm.cpu.gemm.tile_product import {names}; print({names})"
    environment = {key: os.environ[key] for key in os.environ if not key.startswith("NUMBA_CPU")}
    for said in ({"NUMBA_CPU_NAME": "generic"}, {"NUMBA_CPU_FEATURES": "+amx-tile,+amx-bf16"}):
        command = [sys.executable, "-c", code]
        run = subprocess.run(command, env=environment | said, capture_output=True, text=True)
        assert run.stdout == "False 4\n", run.stderr
