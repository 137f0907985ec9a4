"""Mistral (Jiang et al. 2023): Llama, but a token sees only the last ``sliding_window`` ones."""

from __future__ import annotations

from typing import Any

from minivllm.models.llama import LlamaForCausalLM


class MistralForCausalLM(LlamaForCausalLM):
    """A window in every layer; later releases have none (``sliding_window`` is null)."""

    @classmethod
    def read_config(cls, hf) -> dict[str, Any]:
        windows = (hf.sliding_window,) * hf.num_hidden_layers
        return super().read_config(hf) | {"sliding_windows": windows}
