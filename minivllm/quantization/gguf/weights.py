"""Tensors of a GGUF file under the names of a Hugging Face checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from minivllm.models.model_config import ModelConfig
from minivllm.models.registry import get_model_class
from minivllm.quantization.gguf.reader import GGUFReader

# ours -> the file's, parts of a name
_LAYER = {
    "model.layers.": "blk.",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
_LAYER_OF = {  # architectures whose layers have other norms
    "Gemma3ForCausalLM": _LAYER | {
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
    },
}  # fmt: skip
_OTHERS = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
}  # fmt: skip
ROPE_FACTORS = "rope_freqs.weight"  # part of the configuration


def gguf_name(name: str, architecture: str = "") -> str:
    """The file's name of a checkpoint's tensor; of a norm, in a model of this architecture."""
    is_in_layer = name.startswith("model.layers.")
    parts = _LAYER_OF.get(architecture, _LAYER) if is_in_layer else _OTHERS
    for ours, theirs in parts.items():
        name = name.replace(ours, theirs)
    return name


def tensor_names(reader: GGUFReader, config: ModelConfig) -> dict[str, str]:
    """The checkpoint's names of all tensors, and the file's.

    Raises:
        ValueError: if the file has other tensors than its metadata describe.
    """
    without_positions = replace(config, max_position_embeddings=1)  # they are no tensors
    with torch.device("meta"):  # without memory: the metadata may ask for any amount
        model = get_model_class(config.architecture)(without_positions)
    tensors = model.checkpoint_tensors()
    names = {name: gguf_name(name, config.architecture) for name in tensors}
    for name, theirs in names.items():
        info = reader.tensors.get(theirs)
        shape = tuple(tensors[name].shape)
        if info is None or info.shape != shape:
            got = None if info is None else info.shape
            reader.refuse(f"the shape of {theirs!r}", got, f"{shape} by the metadata")
    unknown = reader.tensors.keys() - names.values() - {ROPE_FACTORS}
    if unknown:
        allowed = f"one that {config.architecture} has"
        reader.refuse("each tensor", sorted(unknown)[0], allowed)
    return names


def weights_iterator(path: str | Path, config: ModelConfig) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of the file with its name in a checkpoint, one at a time.

    Matrices of blocks are uint8, and named ``qweight``; floats are as the file has them.

    Raises:
        ValueError: if the file is broken, or its tensors are not those that its metadata describe.
    """
    reader = GGUFReader(path)
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}
    for name, theirs in tensor_names(reader, config).items():
        shape, kind, *_ = reader.tensors[theirs]
        tensor = reader.read(theirs)
        if kind.block_size == 1:
            tensor = kind.unpack(tensor.view(-1, kind.block_bytes)).codes.view(shape)
        elif len(shape) == 1:
            tensor = reader.dequantize(theirs)
        else:
            name = f"{name.removesuffix('weight')}qweight"
        num_heads = heads.get(name.split(".")[-2])
        if num_heads and config.architecture == "LlamaForCausalLM":
            tensor = _unpermute(tensor, num_heads)
        if name.endswith("norm.weight") and config.architecture == "Gemma3ForCausalLM":
            tensor = tensor - 1  # which the converter has added
        yield name, tensor


def _unpermute(tensor: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rows of q or k as a checkpoint has them.

    Two rows that rotary positions turn together are half a head apart there. llama.cpp turns
    neighbours, so its converter sorts the rows of this architecture.
    """
    pairs = tensor.unflatten(0, (num_heads, -1, 2))
    return pairs.transpose(1, 2).reshape(tensor.shape)
