"""Config of a model: from its directory or GGUF file, with what an engine's arguments change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from minivllm.models.generation_config import read_generation_config, sampling_defaults
from minivllm.models.loader import load_config
from minivllm.models.model_config import ModelConfig
from minivllm.quantization import get_quantization_config, gguf
from minivllm.utils.validation import check


def read_model_config(
    directory: Path,
    quantization: str | None = None,
    hf_overrides: dict | None = None,
    generation: Path | None = None,
) -> ModelConfig:
    """Read a model's config.

    Args:
        directory: of a checkpoint, or a GGUF file.
        quantization: a method's name; None: as the files say.
        hf_overrides: fields in place of config.json's; None for a GGUF file.
        generation: where to read generation_config.json; None: with the others.

    Raises:
        ValueError: for a file or a value that cannot be.
    """
    if gguf.is_gguf(directory):
        check(not hf_overrides, "hf_overrides", hf_overrides, "None for a GGUF file")
        config = gguf.load_config(directory)
        if generation is not None:
            defaults = sampling_defaults(read_generation_config(generation))
            config = replace(config, default_sampling=defaults)
    else:
        config = load_config(directory, hf_overrides, generation)
    return replace(config, quant_config=get_quantization_config(directory, quantization))


def is_quantized_in_float16(directory: Path, config: ModelConfig) -> bool:
    """True for packed weights whose scales are float16, and for a GGUF file."""
    quantized = config.quant_config is not None and config.dtype == torch.float16
    return quantized or gguf.is_gguf(directory)
