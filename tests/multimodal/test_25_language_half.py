"""Adapters and quantized checkpoints of a whole model, which concern its language half alone."""

import json
import shutil

import adapters
import multimodal_models as small
import numpy as np
import pytest
import quantized_checkpoints
import torch
from helpers import make_llm, workers_of
from safetensors.torch import load_file, save_file

from minivllm import SamplingParams
from minivllm.engine.input_processor import EngineInput
from minivllm.lab import oracle
from minivllm.lora.request import LoRARequest
from minivllm.models.loader import load_config, load_encoder

CPU = torch.device("cpu")
PREFIXES = {  # by which files call the decoder
    "as before transformers 5": "language_model.model.",
    "as in its memory": "model.language_model.",
    "of the decoder alone": "model.",
}


@pytest.fixture(scope="module")
def llava(tmp_path_factory):
    directory = tmp_path_factory.mktemp("llava")
    return small.save(small.make_llava("clip", "llama"), directory)


def first_token(llm, prompt, lora_request=None):
    token_ids, features = prompt
    engine = llm.llm_engine
    params = SamplingParams(temperature=0, max_tokens=1)
    given = EngineInput(list(token_ids), mm_features=features)
    request = engine.input_processor.make_request("a", given, params, lora_request=lora_request)
    engine.submit(request)
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    return outputs[-1].outputs[0].token_ids[0]


@pytest.mark.parametrize("naming", PREFIXES)
def test_an_adapter_of_the_whole_model_changes_its_decoder(naming, llava, tmp_path):
    model = adapters.load(llava)
    tensors = adapters.tensors_for(model)
    named = {
        key.replace("base_model.model.model.", f"base_model.model.{PREFIXES[naming]}"): tensor
        for key, tensor in tensors.items()
    }
    directory = adapters.write_adapter(tmp_path / "adapter", named)
    for name, (_, layer, _, rows) in model.checkpoint_linears().items():
        a = tensors.get(f"base_model.model.{name}.lora_A.weight")
        if a is not None:
            layer.weight[rows] += 2 * tensors[f"base_model.model.{name}.lora_B.weight"] @ a
    prompt = small.with_pictures([3, "sun", 4, 5])
    encoder = load_encoder(llava, load_config(llava), torch.float32, CPU)
    given = oracle.encode(encoder, prompt[1], CPU)
    best = oracle.next_token_logits(model, prompt[0], given).topk(2)
    assert best.values[0] - best.values[1] > 1e-3
    llm = make_llm(llava, enable_lora=True, max_model_len=64)
    plain = first_token(llm, prompt)
    request = LoRARequest("sql", 1, str(directory))
    assert first_token(llm, prompt, request) == int(best.indices[0]) != plain
    assert first_token(llm, prompt) == plain
    (worker,) = workers_of(llm)
    assert worker.model_runner.encoder_runner.num_encoded >= 1


def test_an_adapter_of_the_tower_is_refused(llava, tmp_path):
    name = "base_model.model.vision_tower.encoder.layers.0.self_attn.q_proj.lora_{}.weight"
    tensors = {name.format("A"): torch.ones(4, 24), name.format("B"): torch.ones(24, 4)}
    directory = adapters.write_adapter(tmp_path / "adapter", tensors)
    with pytest.raises(ValueError, match=r"vision_tower"):
        adapters.read(directory, adapters.load(llava))


def test_a_quantized_checkpoint_of_the_whole_model(llava, tmp_path):
    """The decoder's layers are packed; its head and the tower are named among what is not."""
    rng = np.random.default_rng(3)
    weights = load_file(llava / "model.safetensors")
    packed, floats = {}, {}
    for name, tensor in weights.items():
        packed[name] = floats[name] = tensor
        if name.startswith("language_model.model.layers") and "_proj.weight" in name:
            outputs, inputs = tensor.shape
            layer = quantized_checkpoints.pack_quantized(rng, inputs, outputs, group=-1)
            del packed[name]
            stem = name.removesuffix(".weight")
            packed |= {f"{stem}.{kind}": tensor for kind, tensor in layer.tensors.items()}
            floats[name] = torch.from_numpy(layer.weight)
    config = json.loads((llava / "config.json").read_text())
    weights_of_group = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "channel"}
    quantization = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights_of_group}},
        "ignore": ["language_model.lm_head", "re:vision_tower.*", "re:multi_modal_projector.*"],
    }
    for name, tensors, more in (
        ("packed", packed, {"quantization_config": quantization}),
        ("floats", floats, {}),
    ):
        (tmp_path / name).mkdir()
        save_file(tensors, tmp_path / name / "model.safetensors")
        (tmp_path / name / "config.json").write_text(json.dumps(config | more))
        shutil.copy(llava / "preprocessor_config.json", tmp_path / name)
    prompt = small.with_pictures([3, "sun", 4, 5])
    model = adapters.load(tmp_path / "floats")
    encoder = load_encoder(llava, load_config(llava), torch.float32, CPU)
    given = oracle.encode(encoder, prompt[1], CPU)
    best = oracle.next_token_logits(model, prompt[0], given).topk(2)
    assert best.values[0] - best.values[1] > 1e-3
    llm = make_llm(tmp_path / "packed", max_model_len=64)
    assert first_token(llm, prompt) == int(best.indices[0])
