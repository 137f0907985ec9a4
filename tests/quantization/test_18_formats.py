"""Each format's tensors, unpacked: the weight is the one that was packed, to the last bit."""

import json
from pathlib import Path

import numpy as np
import pytest
import quantized_checkpoints as qc
import torch
from safetensors import safe_open

from minivllm.models.linear import Linear
from minivllm.quantization import CHECKPOINTS, base_config
from minivllm.quantization.activations import round_activations
from minivllm.quantization.awq import AWQScheme
from minivllm.quantization.base_config import (
    QuantizedLinearMethod,
    QuantizedPart,
    QuantizedWeight,
)
from minivllm.quantization.compressed_tensors import Int8Scheme, PackedScheme
from minivllm.quantization.fp8 import FP8Scheme
from minivllm.quantization.gptq import GPTQScheme
from minivllm.quantization.packing import pack, unpack
from minivllm.quantization.round_to_nearest import round_to_int4, round_to_int8

INPUTS, OUTPUTS = 96, 64
DATA = Path(__file__).parents[1] / "data/quantized"


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_numbers_in_words(bits):
    numbers = np.random.default_rng(0).integers(0, 2**bits, (5, 64))
    stored = torch.from_numpy(qc.rows(numbers, bits))
    assert unpack(stored, bits).tolist() == numbers.tolist()
    if 32 % bits == 0:
        assert torch.equal(pack(torch.from_numpy(numbers), bits), stored)


def test_three_bits_cross_words():
    """Numbers 10 and 21 of 32 begin in one of three words and end in the next."""
    numbers = torch.zeros(32, dtype=torch.uint8)
    numbers[10] = numbers[21] = 7
    stored = torch.from_numpy(qc.rows(numbers[None].numpy(), 3))
    assert [f"{w & 0xFFFFFFFF:032b}".count("1") for w in stored[0].tolist()] == [2, 2, 2]
    assert torch.equal(unpack(stored, 3)[0], numbers)


def gptq_cases():
    for bits in (2, 3, 4, 8):
        for change in ({}, {"sym": False}, {"sym": False, "v1": False}, {"v1": False}):
            yield "gptq", GPTQScheme(bits, 32, **change), {"bits": bits, **change}
    for sym in (True, False):
        change = {"sym": sym, "desc_act": True}
        yield "gptq", GPTQScheme(4, 32, **change), change
    yield "gptq", GPTQScheme(4, -1), {"group": -1}
    yield "awq", AWQScheme(32), {}
    yield "awq", AWQScheme(96), {"group": 96}
    for bits in (4, 8):
        for asym in (False, True):
            for group in (32, -1):
                scheme = PackedScheme(bits, group, not asym, False)
                yield "pack_quantized", scheme, {"bits": bits, "asym": asym, "group": group}
    yield "pack_quantized", PackedScheme(4, 32, True, True), {"g_idx": True}
    for strategy in ("channel", "tensor"):
        yield "int_quantized", Int8Scheme(strategy, -1, None), {"strategy": strategy}
        yield "float_quantized", FP8Scheme(strategy, None), {"strategy": strategy}
    yield "float_quantized", FP8Scheme("block", None, (40, 40)), {"block": 40}


CASES = list(gptq_cases())


@pytest.mark.parametrize(("packer", "scheme", "options"), CASES, ids=lambda v: str(v))
def test_the_weight_is_the_one_that_was_packed(packer, scheme, options):
    packed = getattr(qc, packer)(np.random.default_rng(1), INPUTS, OUTPUTS, **options)
    specs = scheme.tensors("layer", INPUTS, OUTPUTS)
    assert packed.tensors.keys() == specs.keys()
    for kind, spec in specs.items():
        tensor = packed.tensors[kind]
        assert (tuple(tensor.shape), spec.dtype or tensor.dtype) == (spec.shape, tensor.dtype)
    scheme.check("layer", packed.tensors)
    weight = scheme.unpack(packed.tensors).dequantize()
    assert weight.dtype == torch.float32
    assert np.array_equal(weight.numpy(), packed.weight)


HELD = ["gptq_v1_sym", "gptq_v1_asym", "gptq_v2_asym", "gptq_desc_act", "gptq_8_bits",
        "gptq_3_bits", "awq_gemm"]  # fmt: skip


@pytest.mark.parametrize("name", HELD)
def test_what_reference_packages_packed_is_what_they_make_of_it(name):
    """To the last bit; see data/make_quantized.py."""
    with safe_open(DATA / f"{name}.safetensors", "torch") as file:
        config = json.loads(file.metadata()["quantization_config"])
        tensors = {key.removeprefix("layer."): file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    want = tensors.pop("dequantized")
    scheme = CHECKPOINTS[config["quant_method"]].from_config(config, name).get_scheme("layer")
    specs = scheme.tensors("layer", *reversed(want.shape))
    assert {kind: tuple(t.shape) for kind, t in tensors.items()} == {
        kind: spec.shape for kind, spec in specs.items()
    }
    done = scheme.check("layer", tensors)
    kept = {kind: tensor for kind, tensor in tensors.items() if kind not in done}
    assert torch.equal(scheme.unpack(kept).dequantize(), want)


@pytest.mark.parametrize(("packer", "scheme", "options"), CASES, ids=lambda v: str(v))
def test_a_product_takes_some_outputs_at_a_time(monkeypatch, packer, scheme, options):
    """Tiles of another number of outputs, or of all, give the definition's product."""
    packed = getattr(qc, packer)(np.random.default_rng(2), INPUTS, 224, **options)
    with torch.device("meta"):
        layer = Linear(INPUTS, 224, bias=False)
    parts = {"p": QuantizedPart("layer", scheme, slice(0, 224))}
    layer.replace_method(QuantizedLinearMethod(parts, {}))
    for kind, tensor in packed.tensors.items():
        layer.quant_method.set_tensor(layer, "p", kind, tensor)
    sizes, dequantize = [], QuantizedWeight.dequantize

    def counted(weight):
        sizes.append(weight.codes.numel())
        return dequantize(weight)

    monkeypatch.setattr(QuantizedWeight, "dequantize", counted)
    x = torch.randn(3, INPUTS, generator=torch.Generator().manual_seed(0))
    want = x @ torch.from_numpy(packed.weight).T
    for most in (1, 70 * INPUTS, 2**20):
        monkeypatch.setattr(base_config, "TILE", most)
        sizes.clear()
        assert torch.allclose(layer(x), want, atol=1e-5, rtol=1e-5)
        assert sum(sizes) == 224 * INPUTS
        assert max(sizes) <= max(most, scheme.output_step * INPUTS)


@pytest.mark.parametrize("kind", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize(
    "options", [{}, {"scale": 0.03}, {"scale": 0.03, "zero": 5}, {"group": 16}], ids=str
)
def test_activations_are_rounded_number_by_number(kind, options):
    x = torch.randn(5, 48, generator=torch.Generator().manual_seed(0)) * 3
    x[1], x[2] = 0, x[2] * 1e-3
    names = {torch.int8: "int8", torch.float8_e4m3fn: "e4m3"}
    if kind != torch.int8 and "zero" in options:
        options = {"scale": options["scale"]}
    static = [options.get(name) for name in ("scale", "zero")]
    static = [None if number is None else torch.tensor([number]) for number in static]
    got = round_activations(x, kind, *static, group_size=options.get("group", -1))
    want = [qc.rounded_row(row.numpy(), names[kind], **options) for row in x]
    assert np.array_equal(got.numpy(), np.array(want, np.float32))
    alone = [round_activations(row[None], kind, *static) for row in x]
    assert "group" in options or torch.equal(torch.cat(alone), got)


def test_rounding_to_nearest():
    """No code is nearer than the one that was taken; zero stays zero."""
    weight = torch.randn(16, 64, generator=torch.Generator().manual_seed(0))
    weight[3, :32], weight[4], weight[5, 7] = 0, 0.25, 0
    tensors = round_to_int4(weight, 32)
    unpacked = GPTQScheme(4, 32, sym=False, v1=False).unpack(tensors)
    found, steps = unpacked.dequantize(), unpacked.scales.float().repeat_interleave(32, 1)
    assert ((found - weight).abs() <= steps * 0.502).all()
    assert (found[weight == 0] == 0).all()
    assert unpacked.codes.amin() == 0
    assert unpacked.codes.amax() == 15
    tensors = round_to_int8(weight)
    unpacked = Int8Scheme("channel", -1, None).unpack(tensors)
    assert ((unpacked.dequantize() - weight).abs() <= unpacked.scales.float() * 0.56).all()
