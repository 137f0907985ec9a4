"""From a Hugging Face directory to a model in memory, whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from minivllm.models.decoder import DecoderForCausalLM
from minivllm.models.model_config import ModelConfig


def load_model(
    directory: str | Path, config: ModelConfig, dtype: torch.dtype, device: torch.device
) -> DecoderForCausalLM:
    """Build the model that ``config`` describes and fill it from the directory's safetensors.

    Raises:
        FileNotFoundError: if there are no safetensors, or the index names a missing file.
        ValueError: if a file is broken, or the tensors are not the ones the model needs.
    """
    weights = _read_weights(Path(directory))
    with torch.device("meta"):
        model = DecoderForCausalLM(config)
    needed = dict(model.state_dict())
    if config.tie_word_embeddings:
        needed.pop("lm_head.weight")
        weights.pop("lm_head.weight", None)
    _check_names_and_shapes(Path(directory), needed, weights)
    weights = {name: tensor.to(device, dtype) for name, tensor in weights.items()}
    model.load_state_dict(weights, assign=True, strict=False)
    if config.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    return model.requires_grad_(False).eval()


def _read_weights(directory: Path) -> dict[str, torch.Tensor]:
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ValueError(f"{index} cannot be read: {error!r}") from error
        files = [directory / name for name in names]
    else:
        files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"model directory {str(directory)!r} has no *.safetensors file.")
    weights: dict[str, torch.Tensor] = {}
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"{file} is missing, though {index.name} names it.")
        try:
            weights.update(load_file(file))
        except SafetensorError as error:
            raise ValueError(f"{file} is broken or truncated: {error}") from error
    # old Llama checkpoints carry the rotary frequencies, which follow from the config
    return {k: v for k, v in weights.items() if not k.endswith("rotary_emb.inv_freq")}


def _check_names_and_shapes(directory: Path, needed: dict, weights: dict) -> None:
    missing, extra = sorted(needed.keys() - weights.keys()), sorted(weights.keys() - needed.keys())
    if missing or extra:
        parts = [f"lacks {len(missing)} tensors, the first is {missing[0]!r}"] if missing else []
        parts += [f"has {len(extra)} unknown tensors, the first is {extra[0]!r}"] if extra else []
        raise ValueError(f"the checkpoint in {str(directory)!r} {' and '.join(parts)}.")
    for name, tensor in weights.items():
        if tensor.shape != needed[name].shape:
            raise ValueError(
                f"{name} in {str(directory)!r} has shape {tuple(tensor.shape)}, but config.json "
                f"asks for {tuple(needed[name].shape)}."
            )
