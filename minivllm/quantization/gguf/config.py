"""Metadata of a GGUF file as a ModelConfig, as if read from a config.json."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from minivllm.models.model_config import ModelConfig
from minivllm.models.registry import get_model_class
from minivllm.models.windows import FULL, MOST_TOKENS, SLIDING
from minivllm.quantization.gguf.reader import REQUIRED, GGUFReader
from minivllm.quantization.gguf.weights import ROPE_FACTORS, tensor_names

# general.architecture -> the name in a config.json
_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM",
                  "qwen3": "Qwen3ForCausalLM", "gemma3": "Gemma3ForCausalLM"}  # fmt: skip
_MODEL_TYPES = {"gemma3": "gemma3_text"}  # where it is another one in a config.json
_ROPE_TYPES = {"none": "default", "linear": "linear", "yarn": "yarn"}
_ROPE_SCALING = ("type", "factor", "original_context_length", "finetuned")
_MOST = 2**19  # of layers, heads and their sizes
_MOST_POSITIONS = 2**20  # their cosines are computed when a model is loaded
# tokens that end a text: of a sequence, a turn, a message to a tool
_EOS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
_END_OF_TURN = "<end_of_turn>"  # Gemma's


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
        hf = AutoConfig.for_model(_MODEL_TYPES.get(name, name), **fields)
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
    num_layers = size("block_count", most=len(reader.tensors))
    fields = {
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "intermediate_size": size("feed_forward_length"),
        "num_hidden_layers": num_layers,
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
    } | _windows(reader, name, num_layers=num_layers, context_length=context_length)
    return fields if name != "gemma3" else _of_gemma3(reader, fields)


def _windows(reader: GGUFReader, name: str, num_layers: int, context_length: int) -> dict[str, Any]:
    """``sliding_window`` and ``layer_types``: a llama with a window has it in all layers."""
    key = f"{name}.attention.sliding_window"
    window = reader.get(key, int, 0)  # 0: there is none
    if not 0 <= window <= MOST_TOKENS:
        reader.refuse(key, window, f"from 0 to {MOST_TOKENS}")
    if name.startswith("qwen"):
        if 0 < window < context_length:
            reader.refuse(key, window, f"at least the context length of {context_length}")
        return {}
    kinds = _layer_kinds(reader, f"{key}_pattern", num_layers) if name == "gemma3" else None
    types = [SLIDING if kinds is None or kinds[i] else FULL for i in range(num_layers)]
    if window == 0:
        types = [FULL] * num_layers
    return {"sliding_window": window or None, "layer_types": types}


def _layer_kinds(reader: GGUFReader, key: str, num_layers: int) -> list[bool]:
    """For each layer, whether it has a window: as a list says, or all but each sixth."""
    if isinstance(reader.metadata.get(key), np.ndarray):
        kinds = reader.metadata[key].astype(bool).tolist()
        if len(kinds) != num_layers:
            reader.refuse(f"the length of {key}", len(kinds), f"{num_layers}: of the layers")
        return kinds
    pattern = reader.get(key, int, 6)
    if not 1 <= pattern <= _MOST:
        reader.refuse(key, pattern, f"from 1 to {_MOST}")
    return [(i + 1) % pattern != 0 for i in range(num_layers)]


def _of_gemma3(reader: GGUFReader, fields: dict[str, Any]) -> dict[str, Any]:
    """Its fields under the names that this architecture has, and those that only it has."""
    # In the one model of 62 layers scores are divided by the root of another size than a head's.
    size = fields["head_dim"]
    if fields["num_hidden_layers"] == 62:
        size = fields["hidden_size"] // fields["num_attention_heads"]
    local = _positive(reader, "gemma3.rope.freq_base_swa", 10000.0)
    ends = fields["eos_token_id"]
    tokens = reader.get("tokenizer.ggml.tokens", list, [])
    if _EOS[1] not in reader.metadata and _END_OF_TURN in tokens:
        ends = [*ends, tokens.index(_END_OF_TURN)]  # files leave it to the reader to know
    return fields | {
        "eos_token_id": ends,
        "query_pre_attn_scalar": size,
        "final_logit_softcapping": reader.get("gemma3.final_logit_softcapping", float, 0.0) or None,
        "rope_parameters": {
            FULL: fields["rope_parameters"],
            SLIDING: {"rope_type": "default", "rope_theta": local},
        },
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
