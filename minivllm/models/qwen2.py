"""Qwen2 and Qwen2.5 (Yang et al. 2024): Llama with biases on q, k and v; maybe some windows."""

from __future__ import annotations

from typing import Any

from minivllm.models.llama import LlamaForCausalLM


class Qwen2ForCausalLM(LlamaForCausalLM):
    """With ``use_sliding_window``, the layers from ``max_window_layers`` on have a window."""

    @classmethod
    def read_config(cls, hf) -> dict[str, Any]:
        window = hf.sliding_window if hf.use_sliding_window else None
        layers = range(hf.num_hidden_layers)
        default = ["sliding" if i >= hf.max_window_layers else "full" for i in layers]
        types = getattr(hf, "layer_types", None) or default
        return super().read_config(hf) | {
            "qkv_bias": True,
            "o_bias": False,
            "sliding_windows": tuple(window if "sliding" in kind else None for kind in types),
        }
