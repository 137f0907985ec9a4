"""Adapters read from PEFT's directories: each part of our layers gets what PEFT would merge."""

import copy

import pytest
import torch
from adapters import NAMES, load, peft_adapter, read, tensors_for, write_adapter
from safetensors.torch import load_file
from small_models import CONFIGS, make_model

WEIGHTS_NAME = NAMES[1]
Q = "base_model.model.model.layers.1.self_attn.q_proj"


def same(one, other) -> bool:
    """True for equal matrices, wherever they come from."""
    flat = [
        {(path, part): ab for path, parts in adapter.weights.items() for part, ab in parts.items()}
        for adapter in (one, other)
    ]
    return flat[0].keys() == flat[1].keys() and all(
        torch.equal(x, y)
        for key in flat[0]
        for x, y in zip(flat[0][key], flat[1][key], strict=True)
    )


# -- what PEFT saves ----------------------------------------------------------------------------

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ALL_OF_OPT = ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"]
PATTERNS = {
    "target_modules": ["q_proj", "v_proj", "o_proj", "out_proj"],
    "rank_pattern": {"v_proj": 2, r"layers\.[12]\.self_attn\.q_proj": 16, "q_proj": 3},
    "alpha_pattern": {r".*\.(0|2)\..*": 5, "v_proj": 1.5},
}
KINDS = {
    "everything": {"r": 8, "lora_alpha": 16, "target_modules": [*ALL, *ALL_OF_OPT[3:]]},
    "only v": {"r": 4, "lora_alpha": 3, "target_modules": ["v_proj"]},
    "only the gate": {"r": 1, "lora_alpha": 1, "target_modules": ["gate_proj", "fc1"]},
    "patterns": {"r": 8, "lora_alpha": 16, **PATTERNS},
    "patterns, rsLoRA": {"r": 8, "lora_alpha": 16, "use_rslora": True, **PATTERNS},
    "one layer": {"r": 5, "target_modules": ["k_proj", "up_proj", "fc1"],
                  "layers_to_transform": [1], "layers_pattern": "layers"},
}  # fmt: skip
FAMILIES = ("llama", "llama-biases", "mistral", "qwen2", "qwen3", "gemma3", "opt")


@pytest.fixture(scope="module", params=FAMILIES)
def bases(request, tmp_path_factory):
    """transformers' model, and ours of the same checkpoint."""
    family, changes, _ = CONFIGS[request.param]
    theirs = make_model(family, **changes)
    directory = tmp_path_factory.mktemp(request.param)
    theirs.save_pretrained(directory)
    return theirs, load(directory)


@pytest.mark.parametrize("kind", KINDS)
def test_each_part_gets_what_peft_would_merge(bases, kind, tmp_path):
    theirs, ours = bases
    adapted = peft_adapter(copy.deepcopy(theirs), tmp_path, **KINDS[kind])
    merged = dict(adapted.merge_and_unload().named_modules())
    adapter = read(tmp_path, ours)
    changed = 0
    for name, (path, layer, part, rows) in ours.checkpoint_linears().items():
        weight = layer.weight[rows].clone()
        if part in adapter.weights.get(path, {}):
            a, b = adapter.weights[path][part]
            weight += b @ a
            changed += 1
        torch.testing.assert_close(weight, merged[name].weight, atol=1e-5, rtol=0)
    assert changed == sum(map(len, adapter.weights.values())) > 0
    ranks = {len(a) for parts in adapter.weights.values() for a, _ in parts.values()}
    assert adapter.rank == max(ranks)


# -- files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["adapter_model.bin", "adapter_model.pt"])
def test_the_same_from_pytorchs_files(llama, good, name, tmp_path):
    other = write_adapter(tmp_path / "other", load_file(good / WEIGHTS_NAME))
    (other / WEIGHTS_NAME).unlink()
    torch.save(load_file(good / WEIGHTS_NAME), other / name)
    assert same(read(good, llama), read(other, llama))


def test_names_without_the_prefix_and_weights_of_the_base(llama, good, tmp_path):
    tensors = load_file(good / WEIGHTS_NAME)
    short = {name.removeprefix("base_model.model."): tensor for name, tensor in tensors.items()}
    for module in ("model.embed_tokens", "base_model.model.lm_head"):  # PEFT adds them
        short[f"{module}.base_layer.weight"] = torch.zeros(89, 32)
    assert same(read(good, llama), read(write_adapter(tmp_path / "short", short), llama))


def test_a_path_in_the_home_directory(llama, good, monkeypatch):
    monkeypatch.setenv("HOME", str(good.parent))
    assert read("~/good", llama).digest == read(good, llama).digest


def test_the_digest_is_that_of_both_files_wherever_they_are(llama, good, tmp_path):
    tensors = load_file(good / WEIGHTS_NAME)
    again = read(write_adapter(tmp_path / "again", tensors), llama)
    assert read(good, llama).digest == again.digest
    assert len(again.digest) == 64
    config = read(write_adapter(tmp_path / "config", tensors, lora_alpha=9), llama)
    tensors[f"{Q}.lora_A.weight"][0, 0] += 1
    weights = read(write_adapter(tmp_path / "weights", tensors), llama)
    assert len({again.digest, config.digest, weights.digest}) == 3


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_scale_is_in_b_before_it_is_rounded(llama, good, dtype):
    stored = load_file(good / WEIGHTS_NAME)
    write_adapter(good, {name: tensor.bfloat16() for name, tensor in stored.items()}, lora_alpha=3)
    adapter = read(good, llama, lora_dtype=dtype)
    a, b = adapter.weights["model.layers.1.self_attn.qkv_proj"]["q_proj"]
    want = getattr(torch, dtype)
    assert torch.equal(a, stored[f"{Q}.lora_A.weight"].bfloat16().to(want))
    assert torch.equal(b, (stored[f"{Q}.lora_B.weight"].bfloat16().float() * 0.75).to(want))


def test_layers_outside_lora_target_modules_are_left_out(llama, tmp_path, caplog):
    directory = write_adapter(tmp_path, tensors_for(llama, ("q_proj", "o_proj")))
    paths = {
        name: {path.rpartition(".")[2] for path in read(directory, llama, **config).weights}
        for name, config in {
            "all": {}, "o": {"target_modules": ["o_proj"]}, "v": {"target_modules": ["v_proj"]},
            "layer": {"target_modules": ["model.layers.1.self_attn.o_proj"]},
            "none": {"target_modules": ["down_proj"]},
        }.items()
    }  # fmt: skip
    qkv = {"qkv_proj"}  # a fused layer has adapters if a part of it may
    assert paths == {"all": qkv | {"o_proj"}, "o": {"o_proj"}, "v": qkv, "layer": {"o_proj"},
                     "none": set()}  # fmt: skip
    assert "leaves out ['model.layers.0.self_attn.o_proj'" in caplog.text


def test_other_fields_of_the_config_and_harmless_ones_change_nothing(llama, good, tmp_path):
    config = {
        "target_modules": "all-linear", "modules_to_save": ["score"], "peft_type": "LORA",
        "init_lora_weights": "gaussian", "base_model_name_or_path": "/nowhere", "unheard_of": [1],
        "bias": "none", "use_dora": False, "rank_pattern": {}, "alpha_pattern": None,
        "alora_invocation_tokens": None, "layer_replication": None,
    }  # fmt: skip
    other = write_adapter(tmp_path / "other", load_file(good / WEIGHTS_NAME), **config)
    assert same(read(good, llama), read(other, llama))
