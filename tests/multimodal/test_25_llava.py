"""LLaVA's form against transformers: every tower with every decoder, however the files name it."""

import dataclasses
import json
import random

import multimodal_models as small
import pytest
import torch
from safetensors.torch import load_file, save_file

from minivllm.lab import oracle
from minivllm.models.loader import load_config, load_encoder, load_model

CPU = torch.device("cpu")
COMBINATIONS = {
    "clip-llama": ("clip", "llama", {}),
    "clip-llama-last-full": ("clip", "llama", {
        "vision_feature_layer": -1, "vision_feature_select_strategy": "full"}),
    "clip-qwen3-two-layers": ("clip", "qwen3", {"vision_feature_layer": [-2, 0]}),
    "clip-gpt2": ("clip", "gpt2", {"projector_hidden_act": "relu"}),
    "siglip-qwen2-tied": ("siglip", "qwen2", {
        "text": {"tie_word_embeddings": True}, "tie_word_embeddings": True}),
    "siglip-mistral-default": ("siglip", "mistral", {"vision_feature_select_strategy": "default"}),
    "siglip-opt-no-bias": ("siglip", "opt", {
        "multimodal_projector_bias": False, "vision": {"vision_use_head": False}}),
}  # fmt: skip


def load(directory):
    config = load_config(directory)
    model = load_model(directory, config, torch.float32, CPU)
    return model, load_encoder(directory, config, torch.float32, CPU)


@pytest.mark.bits
@pytest.mark.parametrize("name", COMBINATIONS)
def test_logits_are_those_of_transformers(name, tmp_path):
    tower, decoder, changes = COMBINATIONS[name]
    theirs = small.make_llava(tower, decoder, **changes)
    theirs.save_pretrained(tmp_path)
    model, encoder = load(tmp_path)
    _, _, num_embeds = encoder.largest_item(100)
    rng = random.Random(3)
    for num_pictures in range(4):
        parts = rng.choices(range(90), k=rng.randint(1, 6))
        for number in range(num_pictures):
            parts += [f"picture {number}", *rng.choices(range(90), k=rng.randint(0, 4))]
        token_ids, features = small.with_pictures([*parts, 5], num_embeds)
        given = oracle.encode(encoder, features, CPU)
        got = oracle.next_token_logits(model, token_ids, given)
        want = small.their_logits(theirs, token_ids, features)
        torch.testing.assert_close(got, want, atol=1e-4, rtol=0)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    directory = tmp_path_factory.mktemp("llava")
    theirs = small.make_llava("clip", "llama")
    return theirs, small.save(theirs, directory)


def published(name: str) -> str:
    """A tensor's name in files of the hub."""
    return name.replace("vision_tower.", "vision_tower.vision_model.")


def nested(name: str) -> str:
    """A tensor's name in the memory of transformers 5."""
    if name.startswith("language_model.lm_head"):
        return name.removeprefix("language_model.")
    name = name.replace("language_model.model.", "language_model.")
    return f"model.{name}"


@pytest.mark.parametrize("renamed", [published, nested])
def test_tensors_may_have_the_names_of_any_release(renamed, checkpoint, tmp_path):
    _, directory = checkpoint
    weights = load_file(directory / "model.safetensors")
    assert all(name.startswith(("language_model.", "vision", "multi_")) for name in weights)
    weights = {renamed(name): tensor for name, tensor in weights.items()}
    weights["vision_tower.vision_model.embeddings.position_ids"] = torch.arange(17)[None]
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((directory / "config.json").read_text())
    token_ids, features = small.with_pictures([7, "a", 8])
    found = []
    for place in (directory, tmp_path):
        model, encoder = load(place)
        given = oracle.encode(encoder, features, CPU)
        found.append(oracle.next_token_logits(model, token_ids, given))
    assert torch.equal(*found)


def test_a_tensor_too_many_and_one_that_is_missing_are_named(checkpoint, tmp_path):
    _, directory = checkpoint
    (tmp_path / "config.json").write_text((directory / "config.json").read_text())
    weights = load_file(directory / "model.safetensors")
    save_file(weights | {"vision_tower.extra": torch.zeros(3)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"1 unknown tensors, the first is 'vision_tower.extra'"):
        load(tmp_path)
    del weights["multi_modal_projector.linear_2.weight"]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"lacks 1 tensors.*'multi_modal_projector.linear_2"):
        load(tmp_path)
    save_file(weights | {"audio.weight": torch.zeros(3)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"unknown tensors, the first is 'audio.weight'"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_token_index": 97}, "image_token_id in config.json must be a token, from 0 to 96"),
        ({"vision_feature_layer": -5}, "vision_feature_layer must be integers from -4 to 3"),
        ({"vision_feature_layer": []}, "vision_feature_layer must be integers"),
        ({"vision_config": {"model_type": "clip_vision_model", "image_size": 2**20}},
         "vision_config.image_size in config.json must be an integer from 1 to 16384"),
        ({"projector_hidden_act": "tanh3"}, "hidden_act='tanh3'"),
        ({"vision_config": {"model_type": "dinov2"}}, "vision_config.model_type must be one of cl"),
        ({"text_config": {"model_type": "gemma"}}, "text_config.model_type must be one of llama"),
    ],
)  # fmt: skip
def test_a_config_that_cannot_be(change, message, checkpoint, tmp_path):
    _, directory = checkpoint
    values = json.loads((directory / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(values | change))
    with pytest.raises(ValueError, match=message):
        load_config(tmp_path)


def test_the_decoder_is_an_ordinary_one(checkpoint):
    """Its config is that of a text model, which whatever changes a model has known before."""
    _, directory = checkpoint
    config = load_config(directory)
    assert (config.architecture, config.is_multimodal) == ("LlamaForCausalLM", True)
    assert config.placeholder_ids == {small.PLACEHOLDER}
    assert config.eos_token_ids == {small.EOS}
    model, encoder = load(directory)
    names = {*model.checkpoint_tensors(), *encoder.checkpoint_tensors()}
    assert not {name for name in model.checkpoint_tensors() if "vision" in name}
    last = "vision_tower.encoder.layers.2."  # behind the layer whose output is asked for
    assert not {name for name in names if name.startswith(last)}
    assert dataclasses.replace(config, multimodal_architecture=None).is_multimodal is False


@pytest.mark.parametrize("architecture", ["Phi3VForCausalLM", "UltravoxModel"])
def test_code_of_the_hub_is_refused_with_what_runs_instead(architecture, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    with pytest.raises(ValueError, match=rf"{architecture}.*no such code is ever run; (\w+) reads"):
        load_config(tmp_path)
