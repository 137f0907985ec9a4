"""The W4A16 kernel under Triton's interpreter, against its twin: dequantized for every product."""

from dataclasses import replace

import numpy as np
import pytest
import quantized_checkpoints as qc
import torch
from test_18_checkpoints import CASES, PROMPT, load
from test_18_gguf import make_model, write

from minivllm.lab.oracle import next_token_logits
from minivllm.models.linear import Linear
from minivllm.models.loader import load_model
from minivllm.quantization import get_quantization_config, w4a16
from minivllm.quantization.awq import AWQScheme
from minivllm.quantization.base_config import QuantizedLinearMethod, QuantizedPart
from minivllm.quantization.gguf import load_config, weights_iterator
from minivllm.quantization.gptq import GPTQScheme
from minivllm.quantization.w4a16 import W4A16LinearMethod, choose_w4a16_method

pytest.importorskip("triton", reason="Triton is available for Linux only")


def make(packer, scheme, inputs, outputs, bias=False, **options):
    """A quantized layer, and a model that is nothing but it."""
    packed = packer(np.random.default_rng(0), inputs, outputs, **options)
    layer = Linear(inputs, outputs, bias=bias)
    if bias:
        layer.bias.data.normal_(generator=torch.Generator().manual_seed(1))
    parts = {"p": QuantizedPart("layer", scheme, slice(0, outputs))}
    layer.replace_method(QuantizedLinearMethod(parts, {}))
    for kind, tensor in packed.tensors.items():
        layer.quant_method.set_tensor(layer, "p", kind, tensor)
    layer.quant_method.process_weights_after_loading(layer)
    return layer.requires_grad_(False)


ASYM = GPTQScheme(4, 48, sym=False)
LAYERS = {
    "sym": (qc.gptq, GPTQScheme(4, 32), 96, 64, {}),
    "asym, a group that is no power of two": (qc.gptq, ASYM, 96, 72, {"group": 48, "sym": False}),
    "two bits": (qc.gptq, GPTQScheme(2, 32), 96, 64, {"bits": 2}),
    "desc_act": (qc.gptq, GPTQScheme(4, 32, desc_act=True), 96, 64, {"desc_act": True}),
    "awq, a group of several blocks": (qc.awq, AWQScheme(128), 256, 136, {"group": 128}),
}


@pytest.mark.combinations(2)
@pytest.mark.parametrize("num_tokens", [1, 16, 70])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("case", LAYERS)
def test_the_kernel_is_the_definition(case, bias, num_tokens):
    packer, scheme, inputs, outputs, options = LAYERS[case]
    layer = make(packer, scheme, inputs, outputs, bias, **options)
    x = torch.randn(num_tokens, inputs, generator=torch.Generator().manual_seed(2))
    want = layer(x)
    choose_w4a16_method(layer)
    assert isinstance(layer.quant_method, W4A16LinearMethod)
    assert torch.allclose(layer(x), want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_kernel_multiplies_16_bits(dtype):
    """No weight is rounded: a product is the definition's, but for its own last bit."""
    layer = make(qc.awq, AWQScheme(32), 96, 64)
    x = torch.randn(5, 96, generator=torch.Generator().manual_seed(2)).to(dtype)
    want = layer(x.float())
    choose_w4a16_method(layer)
    got = layer(x)
    assert got.dtype == dtype
    assert torch.allclose(got.float(), want, atol=1e-5, rtol=torch.finfo(dtype).eps)


@pytest.mark.parametrize("case", ["gptq", "gptq v2, asym", "gptq dynamic", "awq", "W4A16 asym"])
def test_a_models_layers_of_4_bits_are_in_one_layout(plain, tmp_path, case):
    config, packer, options, more = CASES[case]
    qc.write_quantized(plain, tmp_path / "m", config, packer, options, **more)
    model = load(tmp_path / "m")
    want = next_token_logits(model, PROMPT)
    w4a16.apply(model)
    methods = {
        path.rpartition(".")[2]: type(layer.quant_method) is W4A16LinearMethod
        for path, layer in model.model.named_modules()
        if isinstance(layer, Linear)
    }
    mixed = case == "gptq dynamic"  # k_proj in floats, down_proj in 8 bits
    assert methods == {
        "qkv_proj": not mixed, "o_proj": True, "gate_up_proj": True, "down_proj": not mixed,
    }  # fmt: skip
    assert torch.allclose(next_token_logits(model, PROMPT), want, atol=1e-4, rtol=1e-5)


def test_a_layer_takes_no_more_memory_than_in_its_file():
    layer = make(qc.awq, AWQScheme(32), 96, 64)
    before = sum(p.nbytes for p in layer.parameters())
    choose_w4a16_method(layer)
    zeros = 64 * 96 // 32 // 2  # bytes instead of nibbles
    assert sum(p.nbytes for p in layer.parameters()) == before + zeros


def test_a_group_smaller_than_a_block_stays_as_it_is():
    layer = make(qc.gptq, GPTQScheme(4, 8), 96, 64, group=8)
    choose_w4a16_method(layer)
    assert isinstance(layer.quant_method, QuantizedLinearMethod)


def test_a_tied_embedding_is_in_memory_once(tmp_path):
    path, theirs = tmp_path / "model.gguf", make_model("Qwen2", tie_word_embeddings=True)
    write(path, theirs, 2)  # Q4_0
    config = replace(load_config(path), quant_config=get_quantization_config(path))
    weights = weights_iterator(path, config)
    model = load_model(path, config, torch.float32, torch.device("cpu"), weights=weights)
    w4a16.apply(model)
    assert list(model.model.embed_tokens.parameters()) == []
    want = theirs(torch.tensor([PROMPT])).logits[0, -1]
    assert torch.allclose(next_token_logits(model, PROMPT), want, atol=1e-4)
