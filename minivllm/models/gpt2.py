"""GPT-2 (Radford et al. 2019): learned positions, LayerNorm, biases, an MLP without a gate."""

from __future__ import annotations

from typing import Any

from minivllm.models.decoder import DecoderLayer, DecoderModel
from minivllm.models.layers import MLP, LayerNorm
from minivllm.models.model_config import require


class GPT2Layer(DecoderLayer):
    mlp_class = MLP
    norm_class = LayerNorm


class GPT2LMHeadModel(DecoderModel):
    """GPT-2. Its checkpoints have q, k and v fused as here, and linear weights transposed."""

    layer_class = GPT2Layer
    fused_in_checkpoint = True
    transposed_in_checkpoint = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    supports_lora = False  # its adapters would be transposed, too, and have q, k and v in one
    base_model_prefix = "transformer"
    ignored_tensors = (".attn.bias", ".attn.masked_bias")  # the causal mask
    checkpoint_names = {  # noqa: RUF012
        "model.embed_tokens": "transformer.wte",
        "model.embed_positions": "transformer.wpe",
        "model.layers": "transformer.h",
        "model.norm": "transformer.ln_f",
        "input_layernorm": "ln_1",
        "self_attn.qkv_proj": "attn.c_attn",
        "self_attn.o_proj": "attn.c_proj",
        "post_attention_layernorm": "ln_2",
        "mlp.up_proj": "mlp.c_fc",
        "mlp.down_proj": "mlp.c_proj",
    }

    @classmethod
    def read_config(cls, hf) -> dict[str, Any]:
        require(hf, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False)
        require(hf, add_cross_attention=False)
        return {
            "intermediate_size": hf.n_inner or 4 * hf.hidden_size,
            "hidden_act": hf.activation_function,
            "norm_eps": hf.layer_norm_epsilon,
            "qkv_bias": True,
            "o_bias": True,
            "mlp_bias": True,
        }
