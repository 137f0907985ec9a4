"""Gemma 3 (2025), text: most layers have a window, and turn faster than those that see all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch

from minivllm.attention.step import LayerAttention
from minivllm.models.decoder import Attention, Decoder, DecoderLayer
from minivllm.models.layers import RMSNorm
from minivllm.models.llama import LlamaForCausalLM
from minivllm.models.model_config import ModelConfig
from minivllm.models.mrope import get_rope
from minivllm.models.rope import read_base, read_rope
from minivllm.models.windows import FULL, SLIDING, read_windows
from minivllm.utils.validation import check, is_int, is_number


class GemmaRMSNorm(RMSNorm):
    """RMSNorm whose weights are stored as the difference from 1, all of it in float32."""

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None):
        if residual is not None:
            x = residual.add_(x)
        normed = self.rms_norm(x.float(), 1 + self.weight.float(), self.eps).to(x.dtype)
        return normed if residual is None else (normed, residual)

    def divide(self, scales: torch.Tensor) -> None:
        """Let it put out that much less: see ``RMSNorm.divide``."""
        self.weight.copy_((1 + self.weight) / scales - 1)


class Gemma3Attention(Attention):
    """Norms of q and k, and another scale of the scores."""

    def __init__(self, config: ModelConfig, sliding_window: int | None):
        super().__init__(config, sliding_window)
        self.scale = (config.query_pre_attn_scalar or config.head_dim) ** -0.5
        self.q_norm = GemmaRMSNorm(config.head_dim, config.norm_eps)
        self.k_norm = GemmaRMSNorm(config.head_dim, config.norm_eps)


class Gemma3Layer(DecoderLayer):
    """Four norms: what attention and MLP put out has one, too, before it is added."""

    attention_class = Gemma3Attention
    norm_class = GemmaRMSNorm

    def __init__(self, config: ModelConfig, sliding_window: int | None):
        super().__init__(config, sliding_window)
        self.pre_feedforward_layernorm = self.norm_class(config.hidden_size, config.norm_eps)
        self.post_feedforward_layernorm = self.norm_class(config.hidden_size, config.norm_eps)

    def forward(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        cos_sin: torch.Tensor | None,
        attention: LayerAttention,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if residual is None:
            residual = x
            x = self.input_layernorm(x)
        else:
            x, residual = self.input_layernorm(x, residual)
        x = self.post_attention_layernorm(self.self_attn(x, cos_sin, attention))
        x, residual = self.pre_feedforward_layernorm(x, residual)
        return self.post_feedforward_layernorm(self.mlp(x)), residual


class Gemma3Decoder(Decoder):
    """Embeddings times the root of their size, and a rotary base for each kind of layer."""

    def __init__(self, config: ModelConfig, layer_class: type[DecoderLayer]):
        super().__init__(config, layer_class)
        root = torch.tensor(config.hidden_size**0.5, dtype=self.embed_tokens.dtype, device="cpu")
        self.embed_tokens.scale = root.item()  # rounded as the rows are
        self.local_rotary_emb = get_rope(config.head_dim, config.local_rope, config.max_model_len)

    def cos_sin(self, positions: torch.Tensor) -> list[torch.Tensor | None]:
        assert self.rotary_emb is not None
        assert self.local_rotary_emb is not None
        full = self.rotary_emb(positions)
        local = self.local_rotary_emb(positions)
        layers = cast(Iterable[DecoderLayer], self.layers)
        return [full if layer.self_attn.sliding_window is None else local for layer in layers]


class Gemma3ForCausalLM(LlamaForCausalLM):
    """Norms around 1 and behind each part, scaled embeddings, and two kinds of layers."""

    decoder_class = Gemma3Decoder
    layer_class = Gemma3Layer

    @classmethod
    def read_config(cls, hf) -> dict[str, Any]:
        ok = not getattr(hf, "use_bidirectional_attention", None)
        check(ok, "use_bidirectional_attention in config.json", True, "false: layers are causal")
        return {
            "intermediate_size": hf.intermediate_size,
            "hidden_act": hf.hidden_activation,
            "norm_eps": hf.rms_norm_eps,
            "rope": read_rope(hf, FULL, base=1e6),
            "local_rope": _local_rope(hf),
            "sliding_windows": _windows(hf),
            "query_pre_attn_scalar": _positive(hf, "query_pre_attn_scalar"),
            "final_logit_softcapping": _positive(hf, "final_logit_softcapping"),
            "qkv_bias": hf.attention_bias,
            "o_bias": hf.attention_bias,
            "mlp_bias": False,
            "has_float16": False,
        }

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = super().compute_logits(hidden)
        cap = self.config.final_logit_softcapping
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)


def _windows(hf: Any) -> tuple[int | None, ...]:
    """Windows of layers, by ``layer_types`` or the older ``sliding_window_pattern``.

    A pattern of 6 means that of each six layers the last one sees all tokens.
    """
    pattern = getattr(hf, "sliding_window_pattern", 6)
    check(is_int(pattern, 1), "sliding_window_pattern in config.json", pattern, "an integer >= 1")
    default = [SLIDING if (i + 1) % pattern else FULL for i in range(hf.num_hidden_layers)]
    types = getattr(hf, "layer_types", None) or default
    ok = hf.sliding_window is not None or SLIDING not in types
    check(ok, "sliding_window in config.json", None, f"an integer, as there are {SLIDING!r} layers")
    return read_windows(hf, default)


def _local_rope(hf: Any) -> dict[str, Any]:
    """Rotary parameters of layers with a window: never stretched in the older form."""
    if SLIDING in (getattr(hf, "rope_parameters", None) or {}):
        return read_rope(hf, SLIDING)
    base = getattr(hf, "rope_local_base_freq", None) or 10000.0
    return {"rope_type": "default", "rope_theta": read_base("rope_local_base_freq", base)}


def _positive(hf: Any, name: str) -> float | None:
    """A number of the config that scores or logits are divided by; None: it has none."""
    value = getattr(hf, name, None)
    ok = value is None or (is_number(value) and value > 0)
    check(ok, f"{name} in config.json", value, "None or a positive number")
    return value
