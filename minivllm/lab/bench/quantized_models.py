"""Quantized checkpoints of random numbers, of a benchmark's shapes: GPTQ, int8 and GGUF.

Which numbers they are makes no difference to speed. That they are files does: an embedding is kept
in the bits that its file has.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from minivllm.lab.sim.shapes import SHAPES
from minivllm.models.loader import load_config
from minivllm.models.registry import get_model_class
from minivllm.quantization.gguf.types import TYPES
from minivllm.quantization.gguf.weights import gguf_name
from minivllm.utils.validation import check

_ALIGNMENT = 32  # bytes between tensors of a GGUF file
# types of tensors and of values there
_F32 = 0
_U32 = 4
_FLOAT = 6
_STRING = 8


def group_size(shape: str) -> int:
    """Inputs that share a scale in GPTQ: 128, or as many as divide the shape's widths."""
    return math.gcd(128, SHAPES[shape]["hidden_size"], SHAPES[shape]["intermediate_size"])


def write_gptq(directory: Path, shape: str) -> Path:
    """A directory of 4 bits in groups; embedding, norms and biases in float16."""
    group = group_size(shape)

    def pack(name: str, size: int, depth: int) -> dict[str, torch.Tensor]:
        return {
            f"{name}.qweight": _random_bytes(depth // 8, 4 * size).view(torch.int32),
            f"{name}.scales": _floats(depth // group, size),
        }

    config = {"quant_method": "gptq", "bits": 4, "group_size": group}
    return _write_directory(directory, shape, config, pack=pack)


def write_int8(directory: Path, shape: str) -> Path:
    """A directory of int8 with a scale for each output; the rest in float16."""

    def pack(name: str, size: int, depth: int) -> dict[str, torch.Tensor]:
        weight = _random_bytes(size, depth).view(torch.int8)
        return {f"{name}.weight": weight, f"{name}.weight_scale": _floats(size, 1)}

    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    group = {"targets": ["Linear"], "weights": weights}
    config = {"quant_method": "compressed-tensors", "format": "int-quantized",
              "config_groups": {"group_0": group}, "ignore": ["lm_head"]}  # fmt: skip
    return _write_directory(directory, shape, config, pack=pack)


def _write_directory(
    directory: Path,
    shape: str,
    quantization_config: dict[str, Any],
    pack: Callable[[str, int, int], dict[str, torch.Tensor]],
) -> Path:
    directory.mkdir(parents=True)
    config = SHAPES[shape] | {"dtype": "float16", "quantization_config": quantization_config}
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tensors: dict[str, torch.Tensor] = {}
    for name, size in _shapes(directory).items():
        if name.endswith("_proj.weight"):
            tensors |= pack(name.removesuffix(".weight"), *size)
        else:
            tensors[name] = _floats(*size)
    save_file(tensors, directory / "model.safetensors")
    return directory


def write_gguf(path: Path, shape: str, kind: str) -> Path:
    """A GGUF file whose matrices, the embedding too, are blocks of this type, "Q8_0" or "Q4_0".

    It has no tokenizer.
    """
    number, block = next((n, block) for n, block in TYPES.items() if block.name == kind)
    fields = SHAPES[shape]
    arch = fields["model_type"]
    check(arch == "qwen2", "the model_type of the shape", arch, "'qwen2'")
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    values = {
        "general.architecture": _string(arch),
        f"{arch}.attention.layer_norm_rms_epsilon": struct.pack("<If", _FLOAT, 1e-6),
        f"{arch}.rope.freq_base": struct.pack("<If", _FLOAT, 1e4),
    }
    for key, field in (
        ("block_count", "num_hidden_layers"), ("context_length", "max_position_embeddings"),
        ("embedding_length", "hidden_size"), ("feed_forward_length", "intermediate_size"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
    ):  # fmt: skip
        values[f"{arch}.{key}"] = struct.pack("<II", _U32, fields[field])
    infos = b""
    data = []
    end = 0
    for name, size in _shapes(path.parent).items():
        is_matrix = len(size) == 2
        tensor = _floats(*size).float().view(torch.uint8)
        if is_matrix:
            blocks = _random_bytes(size[0] * size[1] // block.block_size, block.block_bytes)
            blocks[:, :2] = torch.tensor([1e-3], dtype=torch.float16).view(torch.uint8)
            tensor = blocks.flatten()
        infos += _text(gguf_name(name)) + struct.pack("<I", len(size))
        infos += struct.pack(f"<{len(size)}Q", *reversed(size))
        infos += struct.pack("<IQ", number if is_matrix else _F32, end)
        data.append(tensor.numpy().tobytes())
        data.append(bytes(-len(data[-1]) % _ALIGNMENT))
        end += len(data[-2]) + len(data[-1])
    head = b"GGUF" + struct.pack("<IQQ", 3, len(data) // 2, len(values))
    head += b"".join(_text(key) + value for key, value in values.items()) + infos
    path.write_bytes(head + bytes(-len(head) % _ALIGNMENT) + b"".join(data))
    return path


def _shapes(directory: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a checkpoint's tensors, by the config.json of a directory."""
    config = load_config(directory)
    with torch.device("meta"):
        model = get_model_class(config.architecture)(config)
    return {name: tuple(tensor.shape) for name, tensor in model.checkpoint_tensors().items()}


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _string(text: str) -> bytes:
    return struct.pack("<I", _STRING) + _text(text)


def _random_bytes(*size: int) -> torch.Tensor:
    return torch.randint(0, 256, size, dtype=torch.uint8)


def _floats(*size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.float16).uniform_(-1e-3, 1e-3)
