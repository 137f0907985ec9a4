"""Qwen2 and Qwen2.5 (Yang et al. 2024): Llama with biases on q, k and v; maybe some windows."""

from __future__ import annotations

from typing import Any

from minivllm.models.llama import LlamaForCausalLM
from minivllm.models.windows import FULL, SLIDING, read_windows


class Qwen2ForCausalLM(LlamaForCausalLM):
    """With ``use_sliding_window``, the layers from ``max_window_layers`` on have a window."""

    @classmethod
    def read_config(cls, hf) -> dict[str, Any]:
        layers = range(hf.num_hidden_layers)
        default = [SLIDING if i >= hf.max_window_layers else FULL for i in layers]
        windows = read_windows(hf, default)
        if not hf.use_sliding_window:
            windows = (None,) * hf.num_hidden_layers
        return super().read_config(hf) | {
            "qkv_bias": True,
            "o_bias": False,
            "sliding_windows": windows,
        }
