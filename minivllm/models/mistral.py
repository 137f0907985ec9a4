"""Mistral (Jiang et al. 2023): Llama, but a token sees only the last ``sliding_window`` ones."""

from __future__ import annotations

from typing import Any

from minivllm.models.llama import LlamaForCausalLM
from minivllm.models.windows import SLIDING, read_windows


class MistralForCausalLM(LlamaForCausalLM):
    """A window in every layer, or in some; later releases have none (it is null)."""

    @classmethod
    def read_config(cls, hf) -> dict[str, Any]:
        windows = read_windows(hf, default=[SLIDING] * hf.num_hidden_layers)
        return super().read_config(hf) | {"sliding_windows": windows}
