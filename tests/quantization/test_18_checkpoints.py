"""A directory of every format gives the logits of its dequantized weights; a wrong one an error."""

import json
import logging
from dataclasses import replace

import adapters
import numpy as np
import pytest
import quantized_checkpoints as qc
import torch
import torch.nn.functional as F
from helpers import make_llm
from safetensors.torch import load_file, save_file

from minivllm import EngineArgs, SamplingParams
from minivllm.lab.oracle import next_token_logits
from minivllm.lora.request import LoRARequest
from minivllm.models import loader
from minivllm.models.linear import LinearMethod
from minivllm.models.loader import load_config, load_model
from minivllm.quantization import get_quantization_config
from minivllm.quantization.base_config import QuantizedLinearMethod

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}


def ct(kind, weights, inputs=None, **more):
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    head = {"quant_method": "compressed-tensors", "format": kind, "ignore": ["lm_head"]}
    return head | {"config_groups": {"group_0": group}} | more


def int_weights(bits, strategy="channel", **more):
    return {"num_bits": bits, "type": "int", "symmetric": True, "strategy": strategy} | more


PER_TOKEN = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
STATIC = PER_TOKEN | {"strategy": "tensor", "dynamic": False}
FLOAT = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
G32 = {"strategy": "group", "group_size": 32}
BLOCK = FLOAT | {"strategy": "block", "block_structure": [64, 64]}
BLOCK_INPUT = PER_TOKEN | {"type": "float", "strategy": "group", "group_size": 64}

# Each: the configuration; the packer and its arguments; what makes layers differ.
CASES = {
    "gptq": (GPTQ, qc.gptq, {}, {}),
    "gptq 8 bits": (GPTQ | {"bits": 8}, qc.gptq, {"bits": 8}, {}),
    "gptq 3 bits": (GPTQ | {"bits": 3}, qc.gptq, {"bits": 3}, {}),
    "gptq 2 bits, asym": (GPTQ | {"bits": 2, "sym": False}, qc.gptq, {"bits": 2, "sym": False}, {}),
    "gptq v2, asym": (
        GPTQ | {"sym": False, "checkpoint_format": "gptq_v2"},
        qc.gptq, {"sym": False, "v1": False}, {},
    ),
    "gptq desc_act": (GPTQ | {"desc_act": True}, qc.gptq, {"desc_act": True}, {}),
    "gptq one group": (GPTQ | {"group_size": -1}, qc.gptq, {"group": -1}, {}),
    "gptq dynamic": (
        GPTQ | {"dynamic": {r"-:.*\.k_proj": {}, r"+:.*down_proj": {"bits": 8}}, "lm_head": False},
        qc.gptq, {}, {"skip": ("k_proj",), "special": {"down_proj": {"bits": 8}}},
    ),
    "gptq modules": (
        GPTQ | {"modules_in_block_to_quantize": [["self_attn.q_proj"], ["mlp.up_proj"]]},
        qc.gptq, {}, {"skip": ("k_proj", "v_proj", "o_proj", "gate_proj", "down_proj")},
    ),
    "gptq, an old file": (GPTQ, qc.gptq, {}, {"old_file": "quantize_config.json"}),
    "awq": (AWQ, qc.awq, {}, {}),
    "awq, an old file": (
        {"w_bit": 4, "q_group_size": 32, "zero_point": True, "version": "GEMM"},
        qc.awq, {}, {"old_file": "quant_config.json"},
    ),
    "awq, some left out": (
        AWQ | {"modules_to_not_convert": ["o_proj", "layers.1.mlp"]},
        qc.awq, {}, {"skip": ("o_proj", "layers.1.mlp")},
    ),
    "W4A16": (ct("pack-quantized", int_weights(4, **G32)), qc.pack_quantized, {}, {}),
    "W4A16 asym": (
        ct("pack-quantized", int_weights(4, **G32) | {"symmetric": False}),
        qc.pack_quantized, {"asym": True}, {},
    ),
    "W4A16 actorder": (
        ct("pack-quantized", int_weights(4, **G32, actorder="group")),
        qc.pack_quantized, {"g_idx": True}, {},
    ),
    "W4A16, some left out": (
        ct("pack-quantized", int_weights(4, **G32), ignore=["lm_head", r"re:.*\.v_proj"]),
        qc.pack_quantized, {}, {"skip": ("v_proj",)},
    ),
    "W8A16": (
        ct("pack-quantized", int_weights(8)), qc.pack_quantized, {"bits": 8, "group": -1}, {}
    ),
    "W8A16 in int8": (ct("int-quantized", int_weights(8)), qc.int_quantized, {}, {}),
    "FP8 weights": (ct("float-quantized", FLOAT), qc.float_quantized, {}, {}),
}  # fmt: skip

# Those that round activations: the kind, and what ``rounded_row`` is told of a static scale.
ROUNDING = {
    "W8A8": (ct("int-quantized", int_weights(8), PER_TOKEN), qc.int_quantized, {}, "int8", {}),
    "W8A8 static": (
        ct("int-quantized", int_weights(8, "tensor"), STATIC),
        qc.int_quantized, {"strategy": "tensor", "static": True}, "int8", {"scale": 0.03},
    ),
    "W8A8 static, asym": (
        ct("int-quantized", int_weights(8), STATIC | {"symmetric": False}),
        qc.int_quantized, {"static": True, "asym": True}, "int8", {"scale": 0.03, "zero": 5},
    ),
    "FP8 dynamic": (
        ct("float-quantized", FLOAT, PER_TOKEN | {"type": "float"}),
        qc.float_quantized, {}, "e4m3", {},
    ),
    "FP8 static": (
        ct("float-quantized", FLOAT | {"strategy": "tensor"}, STATIC | {"type": "float"}),
        qc.float_quantized, {"strategy": "tensor", "static": True}, "e4m3", {"scale": 0.01},
    ),
    "FP8 in blocks": (
        ct("float-quantized", BLOCK, BLOCK_INPUT), qc.float_quantized, {"block": 64},
        "e4m3", {"group": 64},
    ),
    "fp8": (
        {"quant_method": "fp8", "activation_scheme": "dynamic"},
        qc.float_quantized, {"strategy": "tensor"}, "e4m3", {},
    ),
    "fp8 static": (
        {"quant_method": "fp8", "activation_scheme": "static"},
        qc.float_quantized, {"strategy": "tensor", "static": True}, "e4m3", {"scale": 0.01},
    ),
    "fp8 in blocks": (
        {"quant_method": "fp8", "weight_block_size": [64, 64]},
        qc.float_quantized, {"block": 64, "inv": True}, "e4m3", {"group": 64},
    ),
}  # fmt: skip


def load(directory):
    config = load_config(directory)
    config = replace(config, quant_config=get_quantization_config(directory))
    return load_model(directory, config, torch.float32, torch.device("cpu"))


PROMPT = [3, 17, 40, 8, 8, 25]
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


def tokens(llm):
    return llm.generate([PROMPT, PROMPT[2:]], GREEDY, use_tqdm=False)


def logits(llm):
    return next_token_logits(llm.llm_engine.model_runner.model, PROMPT)


@pytest.mark.parametrize("case", CASES)
def test_a_directory_gives_the_logits_of_its_dequantized_weights(plain, tmp_path, case):
    config, packer, options, more = CASES[case]
    qc.write_quantized(plain, tmp_path / "m", config, packer, options, **more)
    ours, twin = make_llm(tmp_path / "m"), make_llm(tmp_path / "m/twin")
    want = logits(twin)
    assert want.abs().max() > 1
    assert torch.allclose(logits(ours), want, atol=1e-4, rtol=1e-5)
    got, want = ([o.outputs[0].token_ids for o in tokens(llm)] for llm in (ours, twin))
    assert got == want


def with_head(directory, head):
    """Give a checkpoint whose config.json says "tied" a head of its own; its twin is untied."""
    for path, tensors in ((directory, head.tensors), (directory / "twin", {"weight": head.weight})):
        file = path / "model.safetensors"
        named = {f"lm_head.{kind}": torch.as_tensor(tensor) for kind, tensor in tensors.items()}
        save_file(load_file(file) | named, file)
    config = json.loads((directory / "twin/config.json").read_text())
    assert config["tie_word_embeddings"]
    untied = config | {"tie_word_embeddings": False}
    (directory / "twin/config.json").write_text(json.dumps(untied))


@pytest.mark.parametrize("case", ["gptq", "awq", "W4A16", "FP8 weights", "W8A16 in int8"])
def test_a_head_of_its_own_is_used_though_the_config_says_tied(tmp_path, case):
    """Heads that stay floats, and one in int8."""
    config, packer, options, more = CASES[case]
    rng = np.random.default_rng(1)
    head = rng.normal(0, 0.2, (qc.SIZES["vocab_size"], 64)).astype(np.float32)
    packed = qc.Packed(head, weight=head)
    if case == "W8A16 in int8":
        config, packed = config | {"ignore": []}, qc.int_quantized(rng, 64, len(head))
    plain = qc.write_float("Qwen2", tmp_path / "float")
    qc.write_quantized(plain, tmp_path / "m", config, packer, options, **more)
    with_head(tmp_path / "m", packed)
    ours, twin = make_llm(tmp_path / "m"), make_llm(tmp_path / "m/twin")
    assert torch.allclose(logits(ours), logits(twin), atol=1e-4, rtol=1e-5)
    got, want = ([o.outputs[0].token_ids for o in tokens(llm)] for llm in (ours, twin))
    assert got == want


@pytest.mark.parametrize(
    ("case", "kinds"),
    [
        ("gptq", {"qweight", "scales"}),
        ("gptq desc_act", {"qweight", "scales", "g_idx"}),
        ("gptq v2, asym", {"qweight", "scales", "qzeros"}),
        ("awq", {"qweight", "scales", "qzeros"}),
        ("W4A16", {"weight_packed", "weight_scale"}),
        ("W4A16 actorder", {"weight_packed", "weight_scale", "weight_g_idx"}),
    ],
)
def test_what_products_need_stays_packed_in_memory(plain, tmp_path, case, kinds):
    config, packer, options, more = CASES[case]
    packed = qc.write_quantized(plain, tmp_path / "m", config, packer, options, **more)
    model = load(tmp_path / "m")
    for name, (_, layer, part, _) in model.checkpoint_linears().items():
        if name != "lm_head":
            kept = layer.quant_method.packed_tensors(layer, part)
            assert kept.keys() == kinds
            assert all(torch.equal(t, packed[name].tensors[kind]) for kind, t in kept.items())
            assert all(t.dtype == packed[name].tensors[kind].dtype for kind, t in kept.items())
            assert not hasattr(layer, "weight")


# -- activations of 8 bits -------------------------------------------------------------------------


class Reference(LinearMethod):
    """The slow product: every token's numbers rounded one by one, part for part the same input."""

    def __init__(self, layer, kind, options):
        self.weight = layer.quant_method.dequantize(layer)
        self.kind, self.options = kind, options

    def create_weights(self, layer):
        raise NotImplementedError

    def apply(self, layer, x):
        rounded = [qc.rounded_row(row.numpy(), self.kind, **self.options) for row in x]
        return F.linear(torch.tensor(rounded), self.weight, layer.bias)


@pytest.mark.parametrize("case", ROUNDING)
def test_activations_are_rounded_for_every_product(plain, tmp_path, case):
    config, packer, options, kind, static = ROUNDING[case]
    packed = qc.write_quantized(plain, tmp_path / "m", config, packer, options)
    model = load(tmp_path / "m")
    weights = {n: p for n, p in model.checkpoint_linears().items() if n != "lm_head"}
    for name, (_, layer, part, _) in weights.items():
        found = layer.quant_method.unpack(layer, part).dequantize()
        assert torch.equal(found, torch.from_numpy(packed[name].weight))
    for layer in {id(p.layer): p.layer for p in weights.values()}.values():
        x = torch.randn(3, layer.input_size, generator=torch.Generator().manual_seed(0))
        got = layer.quant_method.apply(layer, x)
        want = Reference(layer, kind, static).apply(layer, x)
        assert torch.allclose(got, want, atol=1e-4, rtol=1e-5)
        alone = torch.cat([layer.quant_method.apply(layer, row[None]) for row in x])
        assert torch.allclose(alone, got, atol=1e-5)
        plainly = F.linear(x, layer.quant_method.dequantize(layer), layer.bias)
        assert (plainly - got).abs().max() > 1e-3
    outputs = [o.outputs[0] for o in tokens(make_llm(tmp_path / "m"))]
    assert [len(o.token_ids) for o in outputs] == [6, 6]


# -- weights that are rounded at loading -----------------------------------------------------------


@pytest.mark.parametrize(("method", "most"), [("int8_per_channel_weight_only", 1.1), ("int4", 2.0)])
def test_any_float_checkpoint_is_rounded_at_loading(plain, tmp_path, method, most):
    full = make_llm(plain, enforce_eager=True)
    ours = make_llm(plain, enforce_eager=True, quantization=method)
    model = ours.llm_engine.model_runner.model
    dense = full.llm_engine.model_runner.model.checkpoint_linears()
    held = whole = 0
    for name, (_, layer, _, rows) in model.checkpoint_linears().items():
        if name == "lm_head":
            assert not isinstance(layer.quant_method, QuantizedLinearMethod)
            continue
        weight = dense[name].layer.weight[dense[name].rows]
        found = layer.quant_method.dequantize(layer)[rows]
        step = 2 * weight.abs().amax(1, keepdim=True) / (254 if method[3] == "8" else 15)
        assert ((found - weight).abs() <= step * 0.51).all()
        held += sum(p.nbytes for p in layer.parameters()) * len(weight) / layer.output_size
        whole += weight.nbytes
    bits = {"int8_per_channel_weight_only": 8, "int4": 4}[method]
    assert held < whole * bits / 32 * most
    assert [len(o.outputs[0].token_ids) for o in tokens(ours)] == [6, 6]


def test_memory_never_holds_the_floats_that_are_rounded(plain, monkeypatch):
    sizes, allocate = [], loader._allocate

    def counted(model, device):
        sizes.append(sum(p.nbytes for p in model.parameters()))
        allocate(model, device)

    monkeypatch.setattr(loader, "_allocate", counted)
    config = replace(load_config(plain), quant_config=get_quantization_config(plain, "int4"))
    model = load_model(plain, config, torch.float32, torch.device("cpu"))
    assert sizes == [sum(p.nbytes for p in model.parameters())]


def test_a_checkpoint_with_transposed_weights_is_rounded(tmp_path):
    import transformers

    sizes = {"vocab_size": 40, "n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 32}
    plain = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    plain.save_pretrained(tmp_path)
    config = replace(load_config(tmp_path), quant_config=get_quantization_config(tmp_path, "int4"))
    model = load_model(tmp_path, config, torch.float32, torch.device("cpu"))
    layer, want = model.model.layers[0].mlp.up_proj, plain.transformer.h[0].mlp.c_fc.weight.T
    step = want.abs().max() * 2 / 15
    assert ((layer.quant_method.dequantize(layer) - want).abs() <= step * 0.51).all()


# -- which method ----------------------------------------------------------------------------------


def test_the_directory_decides_and_the_user_may_only_agree(plain, tmp_path, caplog):
    qc.write_quantized(plain, tmp_path / "m", GPTQ, qc.gptq, {})
    line = "The model is convertible to gptq_marlin during runtime. Using gptq_marlin kernel."
    for given, logged in ((None, 1), ("gptq_marlin", 1), ("marlin", 1), ("gptq", 0)):
        caplog.clear()
        with caplog.at_level(logging.INFO, "minivllm"):
            found = get_quantization_config(tmp_path / "m", given)
        assert found.name == "gptq"
        assert [r.getMessage() for r in caplog.records].count(line) == logged
    for given in ("awq", "awq_marlin", "int4", "fp8"):
        with pytest.raises(ValueError, match=f"quantization must be 'gptq', .* got '{given}'"):
            make_llm(tmp_path / "m", quantization=given)
    with pytest.raises(ValueError, match=r"quantization must be None or one of int8.*got 'gptq'"):
        make_llm(plain, quantization="gptq")


REFUSED = """aqlm bitsandbytes deepspeedfp experts_int8 fbgemm_fp8 gptq_marlin_24 hqq ipex
    modelopt qqq squeezellm tpu_int8""".split()


@pytest.mark.parametrize("name", REFUSED)
def test_others_are_refused_by_name(plain, tmp_path, name):
    with pytest.raises(ValueError, match=f"quantization must be .* got '{name}'"):
        EngineArgs(quantization=name)
    qc.write_quantized(plain, tmp_path / "m", {"quant_method": name}, qc.gptq, {})
    with pytest.raises(ValueError, match=rf"quant_method in .*config\.json .* got '{name}'"):
        make_llm(tmp_path / "m")


# -- other engine parts ----------------------------------------------------------------------------


@pytest.mark.parametrize("eager", [False, True])
def test_an_adapter_on_quantized_layers(plain, tmp_path, eager):
    qc.write_quantized(plain, tmp_path / "m", GPTQ, qc.gptq, {})
    parts = ("q_proj", "v_proj", "o_proj", "gate_proj", "down_proj")
    tensors = adapters.tensors_for(load(tmp_path / "m"), parts)
    adapters.write_adapter(tmp_path / "adapter", tensors, target_modules=list(parts))
    request = LoRARequest("sql", 1, str(tmp_path / "adapter"))
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=3)
    found = []
    for directory in (tmp_path / "m", tmp_path / "m/twin"):
        llm = make_llm(directory, enable_lora=True, enforce_eager=eager)
        lora = [request, None]
        outputs = llm.generate([PROMPT] * 2, params, lora_request=lora, use_tqdm=False)
        found.append([o.outputs[0] for o in outputs])
    ours, twin = found
    assert [o.token_ids for o in ours] == [o.token_ids for o in twin]
    for got, want in zip(ours, twin, strict=True):
        assert got.cumulative_logprob == pytest.approx(want.cumulative_logprob, abs=1e-3)
    assert ours[0].token_ids != ours[1].token_ids


@pytest.mark.parametrize("case", ["gptq", "gptq desc_act", "awq", "W4A16", "W8A16 in int8"])
def test_dummy_weights(plain, tmp_path, case):
    config, packer, options, more = CASES[case]
    qc.write_quantized(plain, tmp_path / "m", config, packer, options, **more)
    (tmp_path / "m/model.safetensors").unlink()
    llm = make_llm(tmp_path / "m", load_format="dummy")
    assert [len(o.outputs[0].token_ids) for o in tokens(llm)] == [6, 6]


def test_a_file_without_groups_and_with_biases_of_zeros(plain, tmp_path):
    """GPTQ's older packers write no g_idx, or a bias for every layer."""
    qc.write_quantized(plain, tmp_path / "m", GPTQ, qc.gptq, {})
    want = logits(make_llm(tmp_path / "m"))
    weights = load_file(tmp_path / "m/model.safetensors")
    name = "model.layers.0.mlp.down_proj"
    weights = {n: t for n, t in weights.items() if not n.endswith("g_idx")}
    weights[f"{name}.bias"] = torch.zeros(64)
    save_file(weights, tmp_path / "m/model.safetensors")
    assert torch.equal(logits(make_llm(tmp_path / "m")), want)
    weights[f"{name}.bias"][5] = 1
    save_file(weights, tmp_path / "m/model.safetensors")
    with pytest.raises(ValueError, match=f"unknown tensors, the first is '{name}.bias'"):
        make_llm(tmp_path / "m")


# -- damage ----------------------------------------------------------------------------------------

LAYER = "model.layers.1.mlp.down_proj"  # 96 inputs, 64 outputs
GPTQ_ASYM = GPTQ | {"sym": False}
ASYM = {"sym": False}
W4 = CASES["W4A16"][0]


def changed(config, *path, value):
    config = json.loads(json.dumps(config))
    place = config
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return config


def weights_of(config, key, value):
    return changed(config, "config_groups", "group_0", "weights", key, value=value)


BAD_CONFIGS = [
    (GPTQ | {"bits": 5}, r"bits in .*config\.json must be 2 or 3 or 4 or 8, got 5"),
    (GPTQ | {"bits": "4"}, "bits in .* got '4'"),
    (GPTQ | {"group_size": 0}, "group_size in .* got 0"),
    (GPTQ | {"group_size": 40}, "inputs of .*q_proj must be a multiple of group_size 40, got 64"),
    (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format in .* got 'marlin'"),
    (GPTQ | {"is_marlin_format": True}, "is_marlin_format in .* got True"),
    (GPTQ | {"bits": 8}, "'.*qweight' has shape .* asks for"),
    (GPTQ | {"dynamic": {"-:(": {}}}, "dynamic .* regular expression"),
    (GPTQ | {"desc_act": "yes"}, "desc_act in .* got 'yes'"),
    (AWQ | {"version": "gemv"}, "version in .* got 'gemv'"),
    (AWQ | {"bits": 3}, "bits in .* must be 4, got 3"),
    (weights_of(W4, "num_bits", 3), "num_bits in weights in group_0 in .* got 3"),
    (weights_of(W4, "group_size", 48), "multiple of group_size 48, got 64"),
    (changed(W4, "format", value="marlin-24"), "format in group_0 in .* got 'marlin-24'"),
    (changed(W4, "config_groups", value={}), "config_groups in .* at least one group"),
    (weights_of(CASES["FP8 weights"][0], "strategy", "row"), "strategy in .* got 'row'"),
    ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size in .* two positive"),
    (weights_of(ROUNDING["FP8 in blocks"][0], "block_structure", [64, 2**40]), "at most 65536"),
]


@pytest.mark.parametrize(("config", "message"), BAD_CONFIGS)
def test_a_configuration_that_cannot_be_right(plain, tmp_path, config, message):
    qc.write_quantized(plain, tmp_path / "m", config, qc.gptq, {})
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "m")


ODD = [None, [], {}, "x", "", 0, -1, 1.5, True, False, 10**30, [1], ["a"], {"a": 1}, ["re:("],
       "64x" + "9" * 5000, ["re:a{99999999999}"], [2**40, 2**40]]  # fmt: skip


def places(value, path=()):
    """Paths of everything in a configuration."""
    yield path
    if isinstance(value, dict | list):
        inside = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in inside:
            yield from places(each, (*path, key))


@pytest.mark.parametrize("case", [*CASES, *ROUNDING])
def test_an_odd_value_anywhere_is_one_sentence(tmp_path, case):
    config = {"quant_method": "awq"} | (CASES | ROUNDING)[case][0]
    messages = []
    for path in list(places(config))[1:]:
        for odd in ODD:
            text = json.dumps({"quantization_config": changed(config, *path, value=odd)})
            (tmp_path / "config.json").write_text(text)
            try:
                get_quantization_config(tmp_path)
            except ValueError as error:
                messages.append(str(error))
    assert len(messages) > 20
    assert all("\n" not in m and str(tmp_path) in m and len(m) < 600 for m in messages)


def replaced(kind, change):
    """A change of one tensor of LAYER; None takes it away."""

    def damage(weights):
        tensor = change(weights.pop(f"{LAYER}.{kind}").clone())
        if tensor is not None:
            weights[f"{LAYER}.{kind}"] = tensor.contiguous()

    return damage


def put(index, value):
    def change(tensor):
        tensor.view(-1)[index] = value
        return tensor

    return change


BAD_TENSORS = [
    ("gptq", "qweight", lambda t: t[:-1], "qweight' has shape .11, 64., .* asks for .12, 64."),
    ("gptq", "qweight", lambda t: t.long(), "qweight' has dtype torch.int64, .* torch.int32"),
    ("gptq", "scales", lambda t: t.int(), "scales' has dtype torch.int32"),
    ("gptq", "scales", lambda t: None, "lacks 1 tensors, the first is '.*down_proj.scales'"),
    ("gptq", "g_idx", put(3, 3), r"down_proj\.g_idx must be from 0 to 2.* got 3"),
    ("gptq", "g_idx", put(3, -1), r"down_proj\.g_idx must be from 0 to 2.* got -1"),
    (
        "gptq",
        "qzeros",
        put(0, 0x77777776),
        r"down_proj\.qzeros must be all 8, .* got .6, 7.",
    ),
    ("gptq desc_act", "g_idx", lambda t: None, "lacks 1 tensors, the first is '.*down_proj.g_idx'"),
    ("gptq asym", "qzeros", put(0, -1), r"down_proj\.qzeros must be at most 14.* got 15"),
    ("awq", "qzeros", lambda t: t[:1], "qzeros' has shape"),
    ("W4A16", "weight_shape", put(0, 65), r"weight_shape must be \[64, 96\], got \[65, 96\]"),
    ("W4A16 actorder", "weight_g_idx", put(0, 9), r"weight_g_idx must be from 0 to 2.* got 9"),
    ("W8A16 in int8", "weight", lambda t: t.float(), "weight' has dtype torch.float32"),
    ("FP8 weights", "weight", lambda t: t.half(), "weight' has dtype torch.float16"),
]
EXTRA = {"gptq asym": (GPTQ_ASYM, qc.gptq, ASYM, {})}


@pytest.mark.parametrize(("case", "kind", "change", "message"), BAD_TENSORS)
def test_a_tensor_that_cannot_be_right(plain, tmp_path, case, kind, change, message):
    config, packer, options, more = (CASES | EXTRA)[case]
    qc.write_quantized(plain, tmp_path / "m", config, packer, options, **more)
    weights = load_file(tmp_path / "m/model.safetensors")
    replaced(kind, change)(weights)
    save_file(weights, tmp_path / "m/model.safetensors")
    with pytest.raises(ValueError, match=f"{tmp_path}/m: .*{message}"):
        load(tmp_path / "m")


def test_shapes_are_compared_before_memory_is_asked_for(plain, tmp_path, monkeypatch):
    qc.write_quantized(plain, tmp_path / "m", GPTQ | {"bits": 8}, qc.gptq, {})
    monkeypatch.setattr("minivllm.models.loader._allocate", lambda *_: pytest.fail("allocated"))
    with pytest.raises(ValueError, match="qweight' has shape"):
        load(tmp_path / "m")
