"""Llama 2 and 3 (Touvron et al. 2023), from which the other families differ in a few lines."""

from __future__ import annotations

from typing import Any

from minivllm.models.decoder import DecoderModel
from minivllm.models.rope import read_rope
from minivllm.models.windows import FULL, read_windows


class LlamaForCausalLM(DecoderModel):
    """RMSNorm, rotary positions, grouped heads, a gated MLP; biases only where the config says."""

    # old checkpoints carry the rotary frequencies, which follow from the config
    ignored_tensors = ("rotary_emb.inv_freq",)

    @classmethod
    def read_config(cls, hf) -> dict[str, Any]:
        attention_bias = getattr(hf, "attention_bias", False)
        return {
            "intermediate_size": hf.intermediate_size,
            "hidden_act": hf.hidden_act,
            "norm_eps": hf.rms_norm_eps,
            "rope": read_rope(hf),
            "qkv_bias": attention_bias,
            "o_bias": attention_bias,
            "mlp_bias": getattr(hf, "mlp_bias", False),
            "sliding_windows": read_windows(hf, default=[FULL] * hf.num_hidden_layers),
        }
