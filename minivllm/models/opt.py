"""OPT (Zhang et al. 2022): GPT-2's architecture with ReLU; positions are counted from 2."""

from __future__ import annotations

from typing import Any

from minivllm.models.decoder import DecoderModel
from minivllm.models.gpt2 import GPT2Layer
from minivllm.models.model_config import require


class OPTForCausalLM(DecoderModel):
    """The sizes with a norm before each part: all but 350M, which has it behind."""

    layer_class = GPT2Layer
    checkpoint_names = {  # noqa: RUF012
        "model.norm": "model.final_layer_norm",
        "model.": "model.decoder.",
        "input_layernorm": "self_attn_layer_norm",
        "self_attn.o_proj": "self_attn.out_proj",
        "post_attention_layernorm": "final_layer_norm",
        "mlp.up_proj": "fc1",
        "mlp.down_proj": "fc2",
    }

    @classmethod
    def read_config(cls, hf) -> dict[str, Any]:
        require(hf, do_layer_norm_before=True, word_embed_proj_dim=hf.hidden_size)
        require(hf, _remove_final_layer_norm=False, layer_norm_elementwise_affine=True)
        return {
            "intermediate_size": hf.ffn_dim,
            "hidden_act": hf.activation_function,
            "norm_eps": 1e-5,
            "qkv_bias": hf.enable_bias,
            "o_bias": hf.enable_bias,
            "mlp_bias": hf.enable_bias,
            "position_offset": 2,
        }
