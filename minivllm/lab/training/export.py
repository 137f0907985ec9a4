"""Write a network as a Hugging Face directory that `transformers` and vLLM load as it is."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, Qwen2ForCausalLM

from minivllm.embedded.data.chat_format import chat_template
from minivllm.lab.training.network import ROPE_THETA
from minivllm.lab.training.tokenization import END_OF_TEXT, TURN_END
from minivllm.utils.toml_data import load_toml

# Of config.json, what the network has by the same name.
_OWN = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "max_position_embeddings",
        "rms_norm_eps")  # fmt: skip


def _write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def export(network: Qwen2ForCausalLM, tokenizer: Tokenizer, directory: Path) -> None:
    """Weights are stored in bfloat16; the config asks loaders to compute in float32."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.detach().to(torch.bfloat16).contiguous()
        for name, tensor in network.named_parameters()
    }
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(directory / "tokenizer.json"))
    end = tokenizer.token_to_id(END_OF_TEXT)
    turn_end = tokenizer.token_to_id(TURN_END)
    config = network.config
    same = load_toml(__package__, "export")
    own = {name: getattr(config, name) for name in _OWN}
    special = {"rope_theta": ROPE_THETA, "bos_token_id": None, "eos_token_id": turn_end}
    _write_json(directory / "config.json", same["config"] | own | special)
    _write_json(
        directory / "tokenizer_config.json",
        same["tokenizer_config"]
        | {
            "model_max_length": config.max_position_embeddings,
            "bos_token": None,
            "eos_token": TURN_END,
            "pad_token": END_OF_TEXT,
            "chat_template": chat_template(),
        },
    )
    _write_json(
        directory / "generation_config.json",
        {"do_sample": False, "eos_token_id": [turn_end, end], "pad_token_id": end},
    )


def load_network(directory: Path) -> Qwen2ForCausalLM:
    """The network of an exported directory, with its rounded weights, in float32."""
    network = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory))
    tensors = load_file(directory / "model.safetensors")
    network.model.load_state_dict(
        {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    )
    return network
