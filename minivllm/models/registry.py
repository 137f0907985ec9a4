"""Model registry: architecture names and their classes. A new model is a file and a line here.

(vLLM: vllm/model_executor/models/registry.py; how to add one: README.md beside this file)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minivllm.models.decoder import DecoderForCausalLM

# "architectures" in a config.json: the module with the class of that name
MODELS = {
    "LlamaForCausalLM": "minivllm.models.llama",
    "MistralForCausalLM": "minivllm.models.mistral",
    "Qwen2ForCausalLM": "minivllm.models.qwen2",
    "Qwen3ForCausalLM": "minivllm.models.qwen3",
    "OPTForCausalLM": "minivllm.models.opt",
    "GPT2LMHeadModel": "minivllm.models.gpt2",
}


def get_model_class(architecture: str) -> type[DecoderForCausalLM]:
    """The class of an architecture, by its name in a config.json.

    Raises:
        ValueError: if we do not have it.
    """
    if architecture not in MODELS:
        raise ValueError(
            f"architecture {architecture!r} is not supported; minivllm runs {', '.join(MODELS)}."
        )
    return getattr(import_module(MODELS[architecture]), architecture)
