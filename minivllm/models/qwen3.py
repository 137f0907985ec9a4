"""Qwen3, dense (Yang et al. 2025): Qwen2 without biases, its queries and keys normed per head."""

from __future__ import annotations

from typing import Any

from minivllm.models.decoder import Attention, DecoderLayer
from minivllm.models.layers import RMSNorm
from minivllm.models.model_config import ModelConfig
from minivllm.models.qwen2 import Qwen2ForCausalLM


class Qwen3Attention(Attention):
    """An RMSNorm over each head of q and k, before they are turned."""

    def __init__(self, config: ModelConfig, sliding_window: int | None):
        super().__init__(config, sliding_window)
        self.q_norm = RMSNorm(config.head_dim, config.norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.norm_eps)


class Qwen3Layer(DecoderLayer):
    attention_class = Qwen3Attention


class Qwen3ForCausalLM(Qwen2ForCausalLM):
    """Heads have a stated size: ``num_heads * head_dim`` need not be ``hidden_size``."""

    layer_class = Qwen3Layer

    @classmethod
    def read_config(cls, hf) -> dict[str, Any]:
        biases = {"qkv_bias": hf.attention_bias, "o_bias": hf.attention_bias}
        return super().read_config(hf) | biases
