"""SmolLM2's weights as floats, by transformers' own reader of GGUF."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from minivllm.quantization.gguf import load_tokenizer


def load_dequantized(file: Path):
    """transformers' model of a GGUF file, float32."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    return model.eval()


def save_floats(file: Path, model, directory: Path) -> Path:
    """Write that model as a Hugging Face directory, with the file's tokenizer."""
    config = model.config.to_dict()
    del config["quantization_config"]  # transformers does not save such a model itself
    config["architectures"] = [type(model).__name__]
    (directory / "config.json").write_text(json.dumps(config))
    tensors = dict(model.state_dict())
    del tensors["lm_head.weight"]  # tied
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    load_tokenizer(file).save_pretrained(directory)
    return directory
