"""Small operations: fused for a CPU they are what torch says, alone and in the engine."""

import pytest
import torch

from minivllm.cpu import compiled, fused
from minivllm.models import ops
from minivllm.utils.tensors import best_tokens

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}
SHAPES = [(1, 8), (3, 34), (5, 256)]
SHARED = (700, 256)  # enough to wake several threads


def numbers(*shape, dtype, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=rng) * 3).to(dtype)


def same(fused, true, dtype):
    assert fused.dtype == dtype
    torch.testing.assert_close(fused, true, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.fixture(params=TOLERANCE, ids=str)
def dtype(request):
    return request.param


@pytest.mark.parametrize("shape", [*SHAPES, SHARED, (3, 2, 16)], ids=str)
def test_norms(shape, dtype):
    x, weight = numbers(*shape, dtype=dtype), numbers(shape[-1], dtype=dtype, seed=1)
    same(fused.rms_norm(x, weight, 1e-5), ops.rms_norm(x, weight, 1e-5), dtype)


def test_norms_of_a_part_of_each_row(dtype):
    """Rows with a stride, as queries have in the product that holds keys and values, too."""
    x, weight = numbers(4, 5, 16, dtype=dtype)[:, 1:3], numbers(16, dtype=dtype)
    same(fused.rms_norm(x, weight, 1e-5), ops.rms_norm(x, weight, 1e-5), dtype)


@pytest.mark.parametrize("shape", [*SHAPES, SHARED], ids=str)
def test_sums_and_norms(shape, dtype):
    x, weight = numbers(*shape, dtype=dtype), numbers(shape[-1], dtype=dtype, seed=1)
    theirs = numbers(*shape, dtype=dtype, seed=2)
    ours = theirs.clone()
    want = ops.fused_add_rms_norm(x, theirs, weight, 1e-6)
    same(fused.fused_add_rms_norm(x, ours, weight, 1e-6), want, dtype)
    assert torch.equal(ours, theirs)  # one addition, rounded in one way


@pytest.mark.parametrize("shape", [*SHAPES, SHARED], ids=str)
def test_gates(shape, dtype):
    x = numbers(*shape, dtype=dtype)
    x[0, :2] = torch.tensor([-200.0, 200.0])  # exp of these overflows
    same(fused.silu_and_mul(x), ops.silu_and_mul(x), dtype)


@pytest.mark.parametrize("num_tokens", [1, 7, 900])
def test_rotations_of_a_part_of_each_row(num_tokens, dtype):
    qkv = numbers(num_tokens, 6, 32, dtype=dtype)
    cos, sin = numbers(2, num_tokens, 16, dtype=dtype, seed=1)
    cos_sin = torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)), 1)
    query, key, value = qkv.split((3, 2, 1), dim=1)
    others = value.clone()
    want = ops.rotary_embedding(query.float(), key.float(), cos_sin.float())
    for turned, true in zip(fused.rotary_embedding(query, key, cos_sin), want, strict=True):
        same(turned, true.to(dtype), dtype)
    assert torch.equal(value, others)


def test_numbers_are_narrowed_to_the_nearest():
    """Every upper half, with lower halves around the middle, and what is not a number."""
    import numba
    import numpy as np

    upper = torch.arange(2**16, dtype=torch.int64) << 16
    halves = torch.tensor([0, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
    x = (upper[:, None] + halves).to(torch.uint32).view(torch.float32).flatten()

    @numba.njit
    def convert(numbers, bits):
        for i in range(len(numbers)):
            bits[i] = compiled.narrow(numbers[i], bits)

    ours = torch.empty(len(x), dtype=torch.bfloat16)
    convert(x.numpy(), compiled.as_numpy(ours))
    assert torch.equal(ours.isnan(), x.isnan())
    is_number = ~x.isnan()
    assert torch.equal(ours[is_number], x[is_number].to(torch.bfloat16))
    assert np.array_equal(compiled.as_numpy(ours)[x.isnan().numpy()] & 0x7FC0 == 0x7FC0,
                          np.ones(int(x.isnan().sum()), bool))  # fmt: skip


def test_the_best_token_is_the_first_of_equals():
    logits = torch.tensor([[1.0, 3.0, 3.0], [-torch.inf] * 3, [5.0, 2.0, -1.0]])
    best, token_ids = best_tokens(logits)
    assert best.tolist() == [3.0, -torch.inf, 5.0]
    assert token_ids.tolist() == [1, 0, 0]


def test_without_a_folder_for_machine_code_each_process_compiles(monkeypatch):
    monkeypatch.setattr("numba.core.caching.CacheImpl._locator_classes", [])

    def double(x):
        return 2 * x

    assert compiled.kernel(double)(4) == 8
