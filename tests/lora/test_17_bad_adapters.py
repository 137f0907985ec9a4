"""Adapters that cannot be used: one sentence for each, before anything large is read or made."""

import json
import os
import struct
import zipfile
from pathlib import Path

import pytest
import torch
import transformers
from adapters import CONFIG, NAMES, load, peft_adapter, read, tensors_for, write_adapter
from helpers import examples
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from small_models import make_model

from minivllm.lora import peft_helper

CPU = torch.device("cpu")
CONFIG_NAME, WEIGHTS_NAME = NAMES
Q = "base_model.model.model.layers.1.self_attn.q_proj"


def refusal(directory, model, **config) -> str:
    """The sentence that a directory gives; the error is a ``ValueError``, or the test fails."""
    with pytest.raises(ValueError) as error:
        read(directory, model, **config)
    return str(error.value)


# -- bad configs --------------------------------------------------------------------------------

RANK = "LoRA rank `r` must be a positive integer, got "
BAD_CONFIGS = {
    "r is 0": ({"r": 0}, RANK + "0."),
    "r is negative": ({"r": -4}, RANK + "-4."),
    "r is a bool": ({"r": True}, RANK + "True."),
    "r is a float": ({"r": 4.0}, RANK + "4.0."),
    "r is a text": ({"r": "4"}, RANK + "'4'."),
    "r is huge": ({"r": 10**3000}, RANK),
    "r is large": ({"r": 32}, "LoRA rank 32 is greater than max_lora_rank 16."),
    "a pattern's rank is large": ({"rank_pattern": {"q_proj": 17}},
                                  "LoRA rank 17 is greater than max_lora_rank 16."),
    "alpha is a text": ({"lora_alpha": "8"}, "lora_alpha must be a number, got '8'."),
    "alpha is no number": ({"lora_alpha": float("nan")}, "lora_alpha must be a number, got nan."),
    "alpha is infinite": ({"lora_alpha": float("inf")}, "lora_alpha must be a number, got inf."),
    "alpha is beyond floats": ({"lora_alpha": 10**400}, "lora_alpha must be a number, got 1000"),
    "the scale overflows": ({"lora_alpha": 1e300}, "has numbers that are not finite in torch.floa"),
    "rsLoRA is a text": ({"use_rslora": "no"}, "use_rslora must be true or false, got 'no'."),
    "target_modules is a number": ({"target_modules": 3},
                                   "target_modules must be a string or a list of strings, got 3."),
    "ranks are a list": ({"rank_pattern": [4]}, "rank_pattern must be an object of patterns"),
    "a pattern's rank is 0": ({"rank_pattern": {"x": 0}}, "of patterns and positive integers"),
    "a pattern's alpha": ({"alpha_pattern": {"q_proj": "8"}}, "alpha_pattern must be an object of"),
    "a broken pattern": ({"rank_pattern": {"(q_proj": 4}},
                         "rank_pattern has a key '(q_proj' that cannot be used as a regular expr"),
    "an unrolled pattern": ({"rank_pattern": {"((a{1000}){1000}){1000}": 4}},
                            "extensions or repeats a group a number of times"),
    "a deep pattern": ({"alpha_pattern": {"(" * 3000 + ")" * 3000: 4}}, "cannot be used as a reg"),
    "DoRA": ({"use_dora": True}, "vLLM does not yet support DoRA."),
    "lora_bias": ({"lora_bias": True}, "vLLM does not support LoRA bias (lora_bias)."),
    "bias": ({"bias": "all"}, "Adapter bias is not supported."),
    "bias is null": ({"bias": None}, "Adapter bias is not supported."),
    "modules_to_save": ({"modules_to_save": ["score", "lm_head"]},
                        "Unsupported modules_to_save: ['lm_head']"),
    "PiSSA": ({"init_lora_weights": "pissa_niter_16"},
              "vLLM does not support init_lora_weights='pissa_niter_16'."),
    "LoftQ": ({"init_lora_weights": "loftq"}, "vLLM does not support init_lora_weights='loftq'."),
    "aLoRA": ({"alora_invocation_tokens": [1]}, "does not support Activated LoRA (aLoRA)."),
    "layer_replication": ({"layer_replication": [[0, 2]]}, "does not support layer_replication."),
    "BD-LoRA": ({"use_bdlora": {"nblocks": 2}}, "does not support block-diagonal LoRA (BD-LoRA)."),
    "QALoRA": ({"use_qalora": True}, "vLLM does not support QALoRA."),
    "several": ({"use_dora": True, "bias": "all", "r": 64},
                "vLLM does not yet support DoRA. LoRA rank 64 is greater than max_lora_rank 16. "
                "Adapter bias is not supported."),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_CONFIGS)
def test_a_bad_config_gives_its_sentence(llama, good, case):
    fields, sentence = BAD_CONFIGS[case]
    (good / CONFIG_NAME).write_text(json.dumps(CONFIG | fields))
    message = refusal(good, llama)
    assert sentence in message
    assert str(good) in message
    assert len(message) < 1000


@pytest.mark.parametrize("name", ["r", "lora_alpha", "target_modules"])
def test_required_fields(llama, good, name):
    (good / CONFIG_NAME).write_text(json.dumps({k: v for k, v in CONFIG.items() if k != name}))
    assert f"Missing required configuration fields: {{'{name}'}}" in refusal(good, llama)


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"null", b"\xff\xfe\x00", b"[" * 100_000, b'{"r": ' + b"9" * 5000 + b"}"],
)
def test_a_config_that_is_no_json_object(llama, good, text):
    (good / CONFIG_NAME).write_bytes(text)
    assert f"{good / CONFIG_NAME}: " in refusal(good, llama)


@pytest.mark.parametrize("field", ["rank_pattern", "alpha_pattern"])
def test_slow_patterns_are_given_up(llama, good, field, monkeypatch):
    monkeypatch.setattr(peft_helper, "_SECONDS", 0.2)
    (good / CONFIG_NAME).write_text(json.dumps(CONFIG | {field: {"(.|.)" * 28 + "[^a-z_]": 4}}))
    assert f"{field} takes longer than 0.2 s to match." in refusal(good, llama)


# -- bad weights --------------------------------------------------------------------------------


def refused_tensors(model, tmp_path, **changes) -> str:
    """The sentence for a good adapter with some tensors changed, or left out if they are None."""
    tensors = {**tensors_for(model), **changes}
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    return refusal(write_adapter(tmp_path, kept), model)


A, B = f"{Q}.lora_A.weight", f"{Q}.lora_B.weight"
OTHER = "base_model.model.model.layers.{}.weight"
BAD_TENSORS = {
    "no A": ({A: None}, "model.layers.1.self_attn.q_proj has no lora_A."),
    "no B": ({B: None}, "model.layers.1.self_attn.q_proj has no lora_B."),
    "another rank": ({A: torch.zeros(8, 9), B: torch.zeros(9, 8)},
                     "q_proj.lora_A has shape (8, 9), but rank and model ask for (4, 32). "
                     "model.layers.1.self_attn.q_proj.lora_B has shape (9, 8), but rank and model"),
    "another width": ({A: torch.zeros(4, 64)}, "lora_A has shape (4, 64), but rank and model ask"),
    "transposed": ({A: torch.zeros(32, 4)}, "lora_A has shape (32, 4), but rank and model ask for"),
    "more dimensions": ({A: torch.zeros(4, 32, 1)}, "has shape (4, 32, 1), but rank and model ask"),
    "none": ({A: torch.tensor(0.0)}, "has shape (), but rank and model ask for (4, 32)."),
    "integers": ({B: torch.zeros(32, 4, dtype=torch.int8)},
                 "lora_B is torch.int8; float32, float16, bfloat16 can be read."),
    "eight bits": ({B: torch.zeros(32, 4).to(torch.float8_e4m3fn)}, "is torch.float8_e4m3fn; floa"),
    "not a number": ({A: torch.full((4, 32), float("nan"))},
                     "self_attn.q_proj has numbers that are not finite in torch.float32."),
    "infinite": ({B: torch.full((32, 4), float("-inf"))}, "numbers that are not finite"),
    "another layer": ({OTHER.format("3.mlp.up_proj.lora_A"): torch.zeros(4, 32)},
                      "received ['model.layers.3.mlp.up_proj']. The model has no layers of these"),
    "another model": ({OTHER.format("0.attention.query.lora_A"): torch.zeros(4, 32)},
                      "expected target modules in {'down_proj', 'gate_proj', 'k_proj', 'o_proj', "
                      "'q_proj', 'up_proj', 'v_proj'} but received ['model.layers.0.attention.que"),
    "our name": ({OTHER.format("0.self_attn.qkv_proj.lora_A"): torch.zeros(4, 32)},
                 "but received ['model.layers.0.self_attn.qkv_proj']"),
    "a magnitude": ({OTHER.format("0.self_attn.q_proj.lora_magnitude_vector"): torch.zeros(32)},
                    "lora_magnitude_vector.weight' is unsupported LoRA weight."),
    "a bias": ({f"{Q}.lora_B.bias": torch.zeros(32)}, "lora_B.bias' is unsupported LoRA weight."),
    "a whole weight": ({f"{Q}.weight": torch.zeros(32, 32)}, "is unsupported LoRA weight."),
    "twice": ({A.removeprefix("base_model.model."): torch.zeros(4, 32)},
              "is there twice, with and without 'base_model.model.'."),
    "the head": ({"base_model.model.lm_head.lora_A.weight": torch.zeros(4, 32)},
                 "adapters of embed_tokens and lm_head are not supported: ['lm_head']."),
    "the embedding": ({"base_model.model.model.embed_tokens.lora_embedding_B": torch.zeros(32, 4)},
                      "embed_tokens and lm_head are not supported: ['model.embed_tokens']."),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_TENSORS)
def test_tensors_that_do_not_fit_give_their_sentence(llama, tmp_path, case):
    tensors, sentence = BAD_TENSORS[case]
    message = refused_tensors(llama, tmp_path, **tensors)
    assert sentence in message
    assert f"{tmp_path / WEIGHTS_NAME}: " in message
    assert len(message) < 1500


def test_numbers_that_fit_float32_but_not_the_engines_dtype(llama, good):
    tensors = load_file(good / WEIGHTS_NAME) | {A: torch.full((4, 32), 1e5)}
    write_adapter(good, tensors)
    assert read(good, llama, lora_dtype="bfloat16").rank == 4
    message = refusal(good, llama, lora_dtype="float16")
    assert "q_proj has numbers that are not finite in torch.float16." in message


def test_peft_saves_tied_embeddings_and_we_refuse_them(tiny_qwen2, tmp_path):
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tiny_qwen2)
    peft_adapter(theirs, tmp_path, target_modules=["embed_tokens", "lm_head", "q_proj"])
    message = refusal(tmp_path, load(tiny_qwen2))
    assert "adapters of embed_tokens and lm_head are not supported: [" in message


def test_many_reasons_are_counted(llama, tmp_path):
    tensors = {name: torch.zeros(1) for name in tensors_for(llama)}
    assert "And 4 more." in refused_tensors(llama, tmp_path, **tensors)


def test_no_weights_of_adapters_at_all(llama, tmp_path):
    directory = write_adapter(tmp_path, {"lm.lm_head.base_layer.weight": torch.zeros(1)})
    assert "there are no LoRA weights in it." in refusal(directory, llama)


def test_gpt2_has_no_adapters(good, tmp_path):
    make_model("GPT2").save_pretrained(tmp_path / "gpt2")
    sentence = "GPT2LMHeadModel does not support LoRA yet."
    assert refusal(good, load(tmp_path / "gpt2")) == sentence


# -- files that are not there, or not what their names say --------------------------------------


def not_found(path) -> str:
    return f"Loading lora sql failed: No adapter found for {path}"


@pytest.mark.parametrize("name", ["missing", "a" * 300, "a/" * 3000, "\0"])
def test_a_path_without_an_adapter(llama, tmp_path, name):
    assert refusal(tmp_path / name, llama) == not_found(tmp_path / name)


def test_a_directory_without_a_config_or_without_weights(llama, good):
    (good / WEIGHTS_NAME).unlink()
    assert f"{good} doesn't contain tensors: no adapter_model.safetensors or" in refusal(
        good, llama
    )
    (good / CONFIG_NAME).unlink()
    assert refusal(good, llama) == not_found(good)
    assert refusal(good / CONFIG_NAME, llama) == not_found(good / CONFIG_NAME)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_vanishes_while_it_is_read(llama, good, name, monkeypatch):
    is_file = Path.is_file

    def is_file_at_last(path):
        found = is_file(path)
        if path.name == name:
            path.unlink()
        return found

    monkeypatch.setattr(Path, "is_file", is_file_at_last)
    assert refusal(good, llama) == not_found(good)


@pytest.mark.parametrize("name", NAMES)
def test_pipes_and_devices_are_no_files(llama, good, name):
    """A pipe would be waited for, and a device has no end."""
    sentences = (not_found(good), f"{good} doesn't contain tensors")
    (good / name).unlink()
    os.mkfifo(good / name)
    assert refusal(good, llama).startswith(sentences)
    (good / name).unlink()
    (good / name).symlink_to("/dev/zero")
    assert refusal(good, llama).startswith(sentences)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_larger_than_any_adapter_is_not_read(llama, good, name):
    with (good / name).open("r+b") as file:
        file.truncate(2**40)  # sparse: it takes no place on the disk
    assert f"{good / name} has {2**40} bytes; at most " in refusal(good, llama)


# -- damaged safetensors ------------------------------------------------------------------------


def damaged(directory, **fields) -> str:
    """Change one tensor's entry in a safetensors header."""
    file = directory / WEIGHTS_NAME
    data = file.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    header[A] |= fields
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])


@pytest.mark.parametrize(
    "fields",
    [
        {"shape": [2**40, 2**40]},
        {"shape": [2**63, 2**63]},
        {"shape": [2**62, 8]},
        {"shape": [-4, -32]},
        {"shape": [4, 31]},
        {"shape": "4"},
        {"dtype": "F64"},
        {"dtype": "X"},
        {"data_offsets": [0, 2**50]},
        {"data_offsets": [2**64 - 512, 2**64]},
        {"data_offsets": [512, 0]},
        {"data_offsets": [0, 512]},
        {"shape": [2**30, 2**20], "data_offsets": [0, 2**52]},
    ],
    ids=str,
)
def test_a_header_that_lies(llama, good, fields):
    damaged(good, **fields)
    assert f"{good / WEIGHTS_NAME} is broken, truncated, or holds more" in refusal(good, llama)


@pytest.mark.parametrize("header_size", [0, 1, 2**20, 2**62, 2**64 - 1])
def test_a_header_longer_than_its_file(llama, good, header_size):
    data = (good / WEIGHTS_NAME).read_bytes()
    (good / WEIGHTS_NAME).write_bytes(struct.pack("<Q", header_size) + data[8:])
    assert "is broken, truncated, or holds more than plain tensors" in refusal(good, llama)


# -- hostile pickles ----------------------------------------------------------------------------


class Call:
    """An object whose pickle calls a function."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


def as_bin(directory, obj):
    (directory / WEIGHTS_NAME).unlink()
    torch.save(obj, directory / "adapter_model.bin")


@pytest.mark.parametrize(
    "obj",
    [Call(os.mkdir, "executed"), Call(bytearray, 2**45), Call(set), torch.zeros(1).to_sparse(),
     torch.zeros(1, device="meta"), CPU],
    ids=["mkdir", "bytearray", "set", "sparse", "meta", "device"],
)  # fmt: skip
def test_a_pickle_makes_plain_tensors_only(llama, good, obj, monkeypatch):
    monkeypatch.chdir(good)
    as_bin(good, {A: obj})
    assert "its pickle names" in refusal(good, llama)
    assert not (good / "executed").exists()


@pytest.mark.parametrize("obj", [[1], {A: 1}, {1: torch.zeros(1)}, None, "x"], ids=str)
def test_a_pickle_of_something_else(llama, good, obj):
    as_bin(good, obj)
    assert "it is no dict of names and tensors" in refusal(good, llama)


def test_a_view_that_is_larger_than_its_storage_is_measured_first(llama, good):
    as_bin(good, {A: torch.zeros(1).expand(2**24, 2**24), B: torch.zeros(32, 4)})
    assert "lora_A has shape (16777216, 16777216), but rank" in refusal(good, llama)


def test_an_archive_that_unpacks_to_more_than_it_is(llama, good):
    as_bin(good, load_file(good / WEIGHTS_NAME))
    file = good / "adapter_model.bin"
    with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("adapter_model/data/99", bytes(2**24))
    assert "its parts would be larger than the file" in refusal(good, llama)


def test_files_from_before_torch_1_6_are_no_archives(llama, good):
    tensors = load_file(good / WEIGHTS_NAME)
    as_bin(good, None)
    file = good / "adapter_model.bin"
    torch.save(tensors, file, _use_new_zipfile_serialization=False)
    assert f"{file} is broken, truncated, or holds more than plain" in refusal(good, llama)


# -- random damage ------------------------------------------------------------------------------


@examples(150)
@given(
    which=st.sampled_from([CONFIG_NAME, WEIGHTS_NAME, "adapter_model.bin"]),
    cut=st.none() | st.floats(0, 1),
    flips=st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 7)), max_size=4),
)
def test_random_damage_is_a_value_error_or_an_adapter_that_fits(
    llama, tmp_path_factory, which, cut, flips
):
    directory = write_adapter(tmp_path_factory.mktemp("damaged"), tensors_for(llama, ("k_proj",)))
    if which == "adapter_model.bin":
        as_bin(directory, load_file(directory / WEIGHTS_NAME))
    data = bytearray((directory / which).read_bytes())
    data = data[: len(data) if cut is None else int(cut * len(data))]
    for where, bit in flips:
        if data:
            data[int(where * len(data))] ^= 1 << bit
    (directory / which).write_bytes(data)
    try:
        adapter = read(directory, llama)
    except ValueError as error:
        message = str(error)
    else:
        message = f"{directory} has an adapter of rank {adapter.rank}"
        matrices = [parts["k_proj"] for parts in adapter.weights.values()]
        assert {(a.shape, b.shape) for a, b in matrices} == {((4, 32), (32, 4))}
        assert all(matrix.isfinite().all() for ab in matrices for matrix in ab)
    assert str(directory) in message
