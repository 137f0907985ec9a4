"""Adapters for tests: random ones that PEFT saves, and files written by hand."""

import json

import torch
from safetensors.torch import save_file

from minivllm.config.lora import LoRAConfig
from minivllm.lora.peft import read_adapter
from minivllm.lora.request import LoRARequest
from minivllm.models.loader import load_config, load_model

NAMES = ("adapter_config.json", "adapter_model.safetensors")
CONFIG = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}


def peft_adapter(model, directory, seed=0, std=0.2, **config):
    """Give a transformers model a random adapter, in place, and save it.

    Args:
        model: where the adapter goes.
        directory: where its two files go.
        seed, std: of the numbers in A and B, normally distributed.
        config: fields of ``peft.LoraConfig``.

    Returns:
        PEFT's model.
    """
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(model, LoraConfig(**config))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.normal_(0.0, std, generator=generator)
    adapted.save_pretrained(directory)
    return adapted.eval()


def tensors_for(model, parts=("q_proj", "v_proj"), rank=4, seed=0):
    """Random A and B for these parts of all layers of ours, under the names that PEFT gives."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, (_, layer, part, rows) in model.checkpoint_linears().items():
        if part in parts:
            sizes = {"A": (rank, layer.input_size), "B": (rows.stop - rows.start, rank)}
            for matrix, size in sizes.items():
                key = f"base_model.model.{name}.lora_{matrix}.weight"
                tensors[key] = torch.empty(size).normal_(0.0, 0.2, generator=generator)
    return tensors


def write_adapter(directory, tensors, **config):
    """Write an adapter's two files: CONFIG with these fields changed, and tensors."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / NAMES[0]).write_text(json.dumps(CONFIG | config))
    save_file(tensors, directory / NAMES[1])
    return directory


def load(directory):
    """Our model of a checkpoint, in float32 on the CPU."""
    return load_model(directory, load_config(directory), torch.float32, torch.device("cpu"))


def read(directory, model, **config):
    """The adapter in a directory, read for a model under the name "sql"."""
    return read_adapter(LoRARequest("sql", 1, str(directory)), model, LoRAConfig(**config))
