"""Tensors of a GGUF file under the names of a Hugging Face checkpoint, as float32."""

from __future__ import annotations

from collections.abc import Iterator
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
_OTHERS = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
}  # fmt: skip
ROPE_FACTORS = "rope_freqs.weight"  # part of the configuration


def gguf_name(name: str) -> str:
    """The file's name of a checkpoint's tensor."""
    for ours, theirs in (_LAYER if name.startswith("model.layers.") else _OTHERS).items():
        name = name.replace(ours, theirs)
    return name


def check_tensors(reader: GGUFReader, config: ModelConfig) -> None:
    """Raise ``ValueError`` unless the file has just the tensors that its metadata describe."""
    with torch.device("meta"):  # without memory: the metadata may ask for any amount
        model = get_model_class(config.architecture)(config)
    wanted = {gguf_name(name): t.shape for name, t in model.checkpoint_tensors().items()}
    for name, shape in wanted.items():
        info = reader.tensors.get(name)
        if info is None or info.shape != shape:
            got = None if info is None else info.shape
            reader.refuse(f"the shape of {name!r}", got, f"{tuple(shape)} by the metadata")
    unknown = reader.tensors.keys() - wanted.keys() - {ROPE_FACTORS}
    if unknown:
        allowed = f"one that {config.architecture} has"
        reader.refuse("each tensor", sorted(unknown)[0], allowed)


def weights_iterator(path: str | Path, config: ModelConfig) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of the file with its name in a checkpoint, float32, one at a time.

    Raises:
        ValueError: if the file is broken, or its tensors are not those that its metadata describe.
    """
    reader = GGUFReader(path)
    check_tensors(reader, config)
    with torch.device("meta"):
        names = get_model_class(config.architecture)(config).checkpoint_tensors()
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}
    for name in names:
        tensor = torch.from_numpy(reader.dequantize(gguf_name(name)))
        num_heads = heads.get(name.split(".")[-2])
        if num_heads and config.architecture == "LlamaForCausalLM":
            tensor = _unpermute(tensor, num_heads)
        yield name, tensor


def _unpermute(tensor: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rows of q or k as a checkpoint has them.

    Two rows that rotary positions turn together are half a head apart there. llama.cpp turns
    neighbours, so its converter sorts the rows of this architecture.
    """
    pairs = tensor.unflatten(0, (num_heads, -1, 2))
    return pairs.transpose(1, 2).reshape(tensor.shape)
