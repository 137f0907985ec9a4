"""Quantized layers on a CPU's fast path: codes in panels, and the same logits."""

import pytest
import quantized_checkpoints as qc
import torch
from helpers import make_llm
from test_18_checkpoints import CASES, ROUNDING, logits

from minivllm.models.linear import Linear
from minivllm.utils.tensors import as_numpy, as_tensor

pytest.importorskip("numba")


def linears(llm):
    model = llm.llm_engine.model_runner.model
    return [m for m in model.model.modules() if isinstance(m, Linear)]


def methods(llm):
    return {type(layer.quant_method).__name__ for layer in linears(llm)}


@pytest.mark.parametrize(
    "case",
    [
        "gptq",
        "gptq 8 bits",
        "gptq v2, asym",
        "gptq desc_act",
        "gptq dynamic",
        "awq",
        "W4A16",
        "W4A16 actorder",
        "W4A16, some left out",
        "FP8 weights",
    ],
)
def test_panels_take_the_place_of_the_files_tensors(plain, tmp_path, case):
    config, packer, options, more = CASES[case]
    qc.write_quantized(plain, tmp_path / "m", config, packer, options, **more)
    fast, definition = make_llm(tmp_path / "m"), make_llm(tmp_path / "m", enforce_eager=True)
    assert methods(fast) == {"QuantizedPanelLinearMethod"}
    assert methods(definition) == {"QuantizedLinearMethod"}
    assert torch.allclose(logits(fast), logits(definition), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("case", ["gptq", "gptq desc_act", "awq", "W8A8", "fp8"])
def test_rows_of_bfloat16_are_multiplied_as_they_are(plain, tmp_path, case):
    config, packer, options, *_ = (CASES | ROUNDING)[case]
    more = {} if case in ROUNDING else CASES[case][3]
    qc.write_quantized(plain, tmp_path / "m", config, packer, options, **more)
    fast = make_llm(tmp_path / "m", dtype="bfloat16")
    definition = make_llm(tmp_path / "m", dtype="float32", enforce_eager=True)
    num_panels = 0
    for ours, theirs in zip(linears(fast), linears(definition), strict=True):
        method = ours.quant_method
        x = torch.randn(5, ours.input_size, generator=torch.Generator().manual_seed(2)).bfloat16()
        out = ours.quant_method.apply(ours, x)
        want = theirs.quant_method.apply(theirs, x.float())
        most = float(want.abs().max())
        assert out.dtype == torch.bfloat16
        assert torch.allclose(out.float(), want, rtol=2**-8, atol=2e-3 * most)
        if type(method).__name__ == "QuantizedPanelLinearMethod":
            num_panels += 1
            arrays = method.array_product(ours, torch.bfloat16)(as_numpy(x))
            assert torch.equal(as_tensor(arrays, torch.bfloat16), out)
            if case in ROUNDING:  # what the format itself demands is exact
                exact = method.apply(ours, x.float())
                assert torch.equal(out, exact.bfloat16())
    assert num_panels > 0


@pytest.mark.parametrize("method", ["int4", "int8_per_channel_weight_only"])
def test_what_is_rounded_at_loading_is_in_panels(plain, method):
    fast = make_llm(plain, quantization=method)
    assert methods(fast) == {"QuantizedPanelLinearMethod"}
    definition = make_llm(plain, quantization=method, enforce_eager=True)
    assert torch.allclose(logits(fast), logits(definition), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("case", ["W8A8", "FP8 dynamic", "FP8 static", "fp8", "fp8 in blocks"])
def test_panels_for_a_rounded_input(plain, tmp_path, case):
    config, packer, options, *_ = ROUNDING[case]
    qc.write_quantized(plain, tmp_path / "m", config, packer, options)
    fast, definition = make_llm(tmp_path / "m"), make_llm(tmp_path / "m", enforce_eager=True)
    # 96 inputs are no whole blocks of 64, which leaves one layer of each as it is
    assert "QuantizedPanelLinearMethod" in methods(fast)
    for ours, theirs in zip(linears(fast), linears(definition), strict=True):
        x = torch.randn(3, ours.input_size, generator=torch.Generator().manual_seed(2))
        want = theirs.quant_method.apply(theirs, x)
        most = float(want.abs().max())
        assert torch.allclose(ours.quant_method.apply(ours, x), want, atol=1e-5 * most)
