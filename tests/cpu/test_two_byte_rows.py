"""Rows in two bytes times codes: near to the exact product, and a row is the same in any batch."""

import pytest
import torch
from test_quantized_panels import BIAS, FORMATS, quantized

from minivllm.cpu.gemm import two_byte_rows
from minivllm.cpu.gemm.panels import LANES, bias_array
from minivllm.utils.tensors import as_numpy, as_tensor

NOT_WHOLE_GROUPS = {"int4 of a column", "int8 of a column"}  # 328 and 604 are no multiples of 32
FITTING = sorted(FORMATS.keys() - NOT_WHOLE_GROUPS - {"FP8"})
needs_vnni = pytest.mark.skipif(not two_byte_rows.HAS_VNNI, reason="this processor has no VNNI")


def multiply(x, panels, bias, output_size):
    words, scales, mins = map(as_numpy, panels)
    assert two_byte_rows.fits(words, scales)
    output = two_byte_rows.multiply_arrays(
        as_numpy(x), words, scales, mins=mins, bias=bias_array(bias), output_size=output_size
    )
    return as_tensor(output, x.dtype)


def rows_of(num_rows, size):
    """Rows of very different sizes, and in each row numbers that are much larger than others."""
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(num_rows, size, generator=rng)
    x[:, ::37] *= 30
    return x * torch.logspace(-3, 3, num_rows)[:, None]


@needs_vnni
@pytest.mark.parametrize("name", FITTING)
def test_the_error_is_far_below_that_of_bfloat16(name):
    for output_size in (LANES, 2 * LANES + 5):
        panels, weight = quantized(name, output_size)
        plain = torch.randn(35, weight.size(1), generator=torch.Generator().manual_seed(0))
        for x in (plain, rows_of(35, weight.size(1))):
            want = x.double() @ weight.T
            out = multiply(x, panels, None, output_size)
            errors = out.double() - want
            assert out.dtype == torch.float32
            if x is plain:
                assert float(errors.norm() / want.norm()) < 1e-4
            assert float((errors.norm(dim=1) / want.norm(dim=1)).max()) < 5e-4
            bias = BIAS[:output_size]
            torch.testing.assert_close(multiply(x, panels, bias, output_size), out + bias)


@needs_vnni
@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "AWQ", "Q8_0", "int8 with zero points"])
def test_company_changes_no_bits_of_a_row(name):
    output_size = 2 * LANES + 5
    panels, weight = quantized(name, output_size)
    x = rows_of(67, weight.size(1)).bfloat16()
    together = multiply(x, panels, BIAS[:output_size], output_size)
    assert together.dtype == torch.bfloat16
    for rows in (1, 2, 3, 16, 33, 64):
        alone = multiply(x[-rows:], panels, BIAS[:output_size], output_size)
        assert torch.equal(alone, together[-rows:])


@needs_vnni
def test_results_in_bfloat16_are_those_in_float32_rounded():
    panels, weight = quantized("Q4_0", 70)
    x = rows_of(5, weight.size(1)).bfloat16()
    want = multiply(x.float(), panels, BIAS[:70], 70).bfloat16()
    assert torch.equal(multiply(x, panels, BIAS[:70], 70), want)


@needs_vnni
def test_zeros_tiny_numbers_and_what_is_no_number():
    panels, weight = quantized("Q8_0", 40)
    x = torch.zeros(4, weight.size(1))
    x[1] = 1e-38
    x[2, 3] = float("nan")
    x[3, 300] = float("inf")
    out = multiply(x.bfloat16(), panels, None, 40)
    assert bool((out[0] == 0).all())
    assert float(out[1].abs().max()) < 1e-30
    assert not bool(out[2:].isfinite().any())


@needs_vnni
def test_two_threads_compute_what_one_does():
    panels, weight = quantized("GPTQ", 1000)
    x = rows_of(70, weight.size(1)).bfloat16()
    before = torch.get_num_threads()
    answers = []
    try:
        for num_threads in (1, 2):
            torch.set_num_threads(num_threads)
            answers += [multiply(x, panels, None, 1000), multiply(x[:3], panels, None, 1000)]
    finally:
        torch.set_num_threads(before)
    assert torch.equal(answers[0], answers[2])
    assert torch.equal(answers[1], answers[3])


@pytest.mark.parametrize("name", [*sorted(NOT_WHOLE_GROUPS), "FP8"])
def test_other_codes_do_not_fit(name):
    panels, _ = quantized(name, 3)
    assert not two_byte_rows.fits(as_numpy(panels.words), as_numpy(panels.scales))


def test_without_vnni_nothing_fits(monkeypatch):
    monkeypatch.setattr(two_byte_rows, "HAS_VNNI", False)
    panels, _ = quantized("Q8_0", 3)
    assert not two_byte_rows.fits(as_numpy(panels.words), as_numpy(panels.scales))
