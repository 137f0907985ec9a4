"""Metadata of a GGUF file as a ModelConfig, as if read from a config.json."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from minivllm.models.model_config import ModelConfig
from minivllm.models.registry import get_model_class
from minivllm.quantization.gguf.reader import REQUIRED, GGUFReader
from minivllm.quantization.gguf.weights import ROPE_FACTORS, tensor_names

# general.architecture -> the name in a config.json
_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM",
                  "qwen3": "Qwen3ForCausalLM"}  # fmt: skip
_ROPE_TYPES = {"none": "default", "linear": "linear", "yarn": "yarn"}
_ROPE_SCALING = ("type", "factor", "original_context_length", "finetuned")
_MOST = 2**19  # of layers, heads and their sizes
_MOST_POSITIONS = 2**20  # their cosines are computed when a model is loaded
# tokens that end a text: of a sequence, a turn, a message to a tool
_EOS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))


def is_gguf(path: str | os.PathLike | None) -> bool:
    """True for a file whose name ends in ``.gguf``."""
    return path is not None and Path(path).suffix == ".gguf" and Path(path).is_file()


def load_config(path: str | Path) -> ModelConfig:
    """Read the shapes and constants of a GGUF file's model.

    Raises:
        ValueError: if it is broken, describes a model that we do not have, or has other tensors
            than it describes.
    """
    from transformers import AutoConfig

    reader = GGUFReader(path)
    name = reader.get("general.architecture", str)
    if name not in _ARCHITECTURES:
        reader.refuse("general.architecture", name, f"one of {', '.join(_ARCHITECTURES)}")
    architecture = _ARCHITECTURES[name]
    fields = _hf_fields(reader, name)
    try:
        hf = AutoConfig.for_model(name, **fields)
        read_config = get_model_class(architecture).read_config
        config = ModelConfig.from_hf_config(hf, architecture, read_config, {})
    except Exception as error:
        raise ValueError(f"{path}: its metadata cannot be read: {error}") from error
    config = _with_rope_factors(reader, config)
    if config.max_model_len > _MOST_POSITIONS:
        reader.refuse("the number of positions", config.max_model_len, f"<= {_MOST_POSITIONS}")
    tensor_names(reader, config)
    return config


def _hf_fields(reader: GGUFReader, name: str) -> dict[str, Any]:
    """The fields that a config.json would have."""

    def size(key: str, default: Any = REQUIRED, most: int = _MOST) -> int:
        value = reader.get(f"{name}.{key}", int, default)
        if not 1 <= value <= most:
            reader.refuse(f"{name}.{key}", value, f"from 1 to {most}")
        return value

    embedding = reader.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        reader.refuse("token_embd.weight", embedding, "a matrix")
    hidden = size("embedding_length")
    heads = size("attention.head_count")
    num_kv_heads = size("attention.head_count_kv", heads, heads)
    if heads % num_kv_heads:
        allowed = f"a divisor of the {heads} heads"
        reader.refuse(f"{name}.attention.head_count_kv", num_kv_heads, allowed)
    head_dim = size("attention.key_length", max(hidden // heads, 1))
    for key in ("attention.value_length", "rope.dimension_count"):
        if size(key, head_dim) != head_dim or head_dim % 2:
            reader.refuse(f"{name}.{key}", size(key, head_dim), f"{head_dim}, and even")
    context_length = size("context_length", most=_MOST_POSITIONS)
    window = size("attention.sliding_window", context_length)
    if window < context_length:
        allowed = f"at least the context length of {context_length}"
        reader.refuse(f"{name}.attention.sliding_window", window, allowed)
    return {
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "intermediate_size": size("feed_forward_length"),
        "num_hidden_layers": size("block_count", most=len(reader.tensors)),
        "num_attention_heads": heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": context_length,
        "rms_norm_eps": _positive(reader, f"{name}.attention.layer_norm_rms_epsilon"),
        "rope_parameters": _rope(reader, name),
        "tie_word_embeddings": "output.weight" not in reader.tensors,
        "attention_bias": "blk.0.attn_q.bias" in reader.tensors,
        "eos_token_id": [reader.get(key, int) for key in _EOS if key in reader.metadata],
        "dtype": "float16",  # whatever its blocks are
    }


def _rope(reader: GGUFReader, name: str) -> dict[str, Any]:
    scaling = f"{name}.rope.scaling."
    for key in reader.metadata:
        if key.startswith(scaling) and key.removeprefix(scaling) not in _ROPE_SCALING:
            reader.refuse("a key", key, f"one of {scaling}{{{', '.join(_ROPE_SCALING)}}}")
    kind = reader.get(f"{scaling}type", str, "none")
    if kind not in _ROPE_TYPES:
        reader.refuse(f"{scaling}type", kind, f"one of {', '.join(_ROPE_TYPES)}")
    rope: dict[str, Any] = {
        "rope_type": _ROPE_TYPES[kind],
        "rope_theta": _positive(reader, f"{name}.rope.freq_base", 10000.0),
    }
    if kind != "none":
        rope["factor"] = _positive(reader, f"{scaling}factor")
        length = reader.get(f"{name}.context_length", int)
        length = reader.get(f"{scaling}original_context_length", int, length)
        rope["original_max_position_embeddings"] = length
    return rope


def _positive(reader: GGUFReader, key: str, default: Any = REQUIRED) -> float:
    value = reader.get(key, float, default)
    if not 0 < value < math.inf:
        reader.refuse(key, value, "a positive number")
    return value


def _with_rope_factors(reader: GGUFReader, config: ModelConfig) -> ModelConfig:
    """Llama 3's scaling is a tensor in the file: what each frequency is divided by."""
    info = reader.tensors.get(ROPE_FACTORS)
    if info is None or config.rope is None:
        return config
    if info.shape != (config.head_dim // 2,):
        reader.refuse(f"the shape of {ROPE_FACTORS!r}", info.shape, f"({config.head_dim // 2},)")
    factors = tuple(reader.dequantize(ROPE_FACTORS).tolist())
    return replace(
        config, rope=config.rope | {"rope_type": "freq_factors", "freq_factors": factors}
    )
