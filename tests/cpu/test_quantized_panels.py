"""Panels of 4 and 8 bits: products with them are those with the dequantized weights."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from numba import njit

from minivllm.cpu.gemm import int8_panels, quantized_panels
from minivllm.cpu.gemm.microkernel import FEATURES
from minivllm.cpu.gemm.panels import LANES, VECTORS
from minivllm.cpu.gemm.quantized_panels import QuantizedPanels, pack
from minivllm.utils.tensors import as_numpy

# bits, input size, group size, what a group has beside its scale, dtype of the scales
FORMATS = {
    "Q4_0": (4, 384, 32, "", torch.float16),
    "Q4_1": (4, 96, 32, "mins", torch.float16),
    "GPTQ": (4, 512, 128, "", torch.float16),
    "AWQ": (4, 640, 64, "zeros", torch.float16),
    "int4 of a column": (4, 328, 328, "zeros", torch.bfloat16),
    "Q8_0": (8, 320, 32, "", torch.float16),
    "Q5_1": (8, 64, 32, "mins", torch.float16),
    "int8 of a column": (8, 604, 604, "", torch.float32),
    "int8 with zero points": (8, 384, 128, "zeros", torch.float16),
    "FP8": (8, 384, 128, "e4m3", torch.float32),
}
BIAS = torch.randn(200, generator=torch.Generator().manual_seed(7))


def quantized(name: str, output_size: int) -> tuple[QuantizedPanels, torch.Tensor]:
    """Random panels of a format, and by its definition the weight that they are, float64."""
    bits, input_size, group, beside, dtype = FORMATS[name]
    rng, shape = torch.Generator().manual_seed(0), (output_size, input_size // group)
    low, high, kind = (0, 16, torch.uint8) if bits == 4 else (-128, 128, torch.int8)
    q = torch.randint(low, high, (output_size, input_size), dtype=kind, generator=rng)
    scales = (torch.rand(shape, generator=rng) / 10 + 0.01).to(dtype)
    zeros = torch.randint(max(low, -127), high, shape, dtype=torch.int8, generator=rng)
    mins = torch.randn(shape, generator=rng).to(dtype)
    zero, least = torch.tensor(8 if bits == 4 else 0), torch.tensor(0)
    if beside == "mins":
        zero, least = least, mins.double().repeat_interleave(group, 1)
    elif beside == "zeros":
        zero = zeros.double().repeat_interleave(group, 1)
    if beside == "e4m3":
        q = torch.where(q.view(torch.uint8) & 127 == 127, 0, q)  # these bits are no number
        q = q.view(torch.float8_e4m3fn)
    weight = (q.float().double() - zero) * scales.double().repeat_interleave(group, 1) + least
    given = {"mins": {"mins": mins}, "zeros": {"zeros": zeros}}.get(beside, {})
    return pack(q, scales, **given), weight


def assert_same(out: torch.Tensor, want: torch.Tensor) -> None:
    assert out.dtype == torch.float32
    most = float(want.abs().max())
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5 * most)


def check_format(name: str, all_rows) -> None:
    """Compare products of every number of rows, for columns that fill their panels or do not."""
    for output_size in (3, LANES, 2 * LANES + 5):
        panels, weight = quantized(name, output_size)
        x = torch.randn(max(all_rows), weight.size(1), generator=torch.Generator().manual_seed(1))
        want = x.double() @ weight.T
        for rows in all_rows:
            bias = BIAS[:output_size] if rows % 2 else None
            offset = 0 if bias is None else bias.double()
            out = quantized_panels.multiply(x[:rows], panels, bias, output_size)
            assert_same(out, want[:rows] + offset)


def check_int8(all_rows) -> None:
    """Compare products of int8 by int8; a row is the same, to the last bit, in any batch."""
    for output_size in (3, 2 * LANES + 5):
        panels, weight = quantized("int8 of a column", output_size)
        x = torch.randn(max(all_rows), weight.size(1), generator=torch.Generator().manual_seed(1))
        x *= torch.logspace(-3, 3, len(x))[:, None]
        steps = x.abs().amax(1, keepdim=True) / 127
        want = ((x / steps).round().double() @ weight.T) * steps + BIAS[:output_size]
        together = int8_panels.multiply(x, panels, BIAS[:output_size], output_size)
        for row, answer in zip(together, want, strict=True):
            assert_same(row, answer)
        for rows in all_rows:
            alone = int8_panels.multiply(x[-rows:], panels, BIAS[:output_size], output_size)
            assert torch.equal(alone, together[-rows:])


@pytest.mark.parametrize("name", FORMATS)
def test_a_product_is_that_of_the_dequantized_weight(name):
    check_format(name, range(1, 131))


def test_rounded_rows_times_bytes_and_a_row_is_the_same_in_any_batch():
    check_int8(range(1, 131))


@pytest.mark.parametrize("cpu", ["haswell", "generic"])
def test_older_processors_compute_the_same(cpu):
    """Vectors of 8 and of 4 lanes, a table that is none, bytes without VNNI."""
    features = {"haswell": "+sse4.2,+avx,+avx2,+fma,+f16c", "generic": ""}[cpu]
    if features and not set(features.split(",")) <= FEATURES:
        pytest.skip("this processor has no AVX2")
    code = (
        "from test_quantized_panels import *\n"
        "check_format('GPTQ', [1, 2, 7, 30])\n"
        "check_int8([1, 2, 7])"
    )
    said = {"NUMBA_CPU_NAME": cpu, "NUMBA_CPU_FEATURES": features}
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parent,
        env=os.environ | said,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr


def test_two_threads_compute_what_one_does():
    """Products that are large enough are shared."""
    nibbles, bytes_ = (quantized(name, 1000)[0] for name in ("GPTQ", "int8 of a column"))
    x = torch.randn(130, 604, generator=torch.Generator().manual_seed(1))
    calls = [
        (quantized_panels.multiply, x[:3, :512], nibbles),
        (quantized_panels.multiply, x[:, :512], nibbles),
        (int8_panels.multiply, x, bytes_),
    ]
    before, answers = torch.get_num_threads(), []
    try:
        for num_threads in (1, 2):
            torch.set_num_threads(num_threads)
            answers.append([multiply(rows, p, None, 1000) for multiply, rows, p in calls])
    finally:
        torch.set_num_threads(before)
    for alone, shared in zip(*answers, strict=True):
        assert torch.equal(alone, shared)


@pytest.mark.bits
def test_rows_are_rounded_to_the_nearest_and_halves_to_even():
    numbers = torch.tensor([[127, 0.5, 1.5, -0.5, -1.5, -2.5, 126.5, -127], [0.0] * 8])
    identity = pack(torch.eye(8, dtype=torch.int8), torch.ones(8, 1))
    out = int8_panels.multiply(numbers, identity, None, 8)
    assert out.tolist() == [[127, 0, 2, 0, -2, -2, 126, -127], [0] * 8]


@pytest.mark.bits
def test_without_vnni_sums_are_the_same(monkeypatch):
    monkeypatch.setattr(int8_panels, "HAS_VNNI", False)
    kernel = int8_panels.int8_kernel(1, VECTORS)

    @njit
    def multiply_add(*args):
        kernel(*args)

    panels, _ = quantized("int8 of a column", LANES)
    left = torch.arange(604).view(1, 604) % 255 - 127  # the largest is 127: a step is 1
    sums, steps = torch.empty(1, LANES), torch.ones(1)
    words, scales = as_numpy(panels.words[0]), as_numpy(panels.scales[0, 0])
    begins = -128 * left.sum(1, dtype=torch.int32)
    rows = left.to(torch.int8).numpy(), words, scales, steps.numpy(), begins.numpy()
    multiply_add(sums.numpy(), *rows, False)
    assert torch.equal(sums, int8_panels.multiply(left, panels, None, LANES))


@pytest.mark.parametrize(
    ("dtype", "input_size", "groups"), [(torch.uint8, 48, 4), (torch.int8, 6, 1)]
)
def test_a_group_that_ends_within_a_word_is_refused(dtype, input_size, groups):
    q, scales = torch.zeros(2, input_size, dtype=dtype), torch.ones(2, groups)
    with pytest.raises(ValueError, match="group size"):
        pack(q, scales)
