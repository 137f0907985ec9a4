"""Model registry: architecture names and their classes. A new model is a file and a line here.

(vLLM: vllm/model_executor/models/registry.py; how to add one: README.md beside this file)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minivllm.models.decoder import DecoderModel
    from minivllm.models.multimodal import MultiModalEncoder

# "architectures" in a config.json: the module with the class of that name
MODELS = {
    "LlamaForCausalLM": "minivllm.models.llama",
    "MistralForCausalLM": "minivllm.models.mistral",
    "Qwen2ForCausalLM": "minivllm.models.qwen2",
    "Qwen3ForCausalLM": "minivllm.models.qwen3",
    "Gemma3ForCausalLM": "minivllm.models.gemma3",
    "OPTForCausalLM": "minivllm.models.opt",
    "GPT2LMHeadModel": "minivllm.models.gpt2",
    "BertModel": "minivllm.models.bert",
    "RobertaModel": "minivllm.models.roberta",
    "XLMRobertaModel": "minivllm.models.roberta",
}
# Models of pictures or sound: towers of their own, beside one of the decoders above
MULTIMODAL_MODELS = {
    "LlavaForConditionalGeneration": "minivllm.models.llava",
    "Qwen2VLForConditionalGeneration": "minivllm.models.qwen2_vl",
    "Qwen2AudioForConditionalGeneration": "minivllm.models.qwen2_audio",
}
# Models whose code comes with their weights, which is never run, and what reads such prompts here
_INSTEAD = {
    "Phi3VForCausalLM": "LlavaForConditionalGeneration reads several pictures in a prompt, too",
    "UltravoxModel": "Qwen2AudioForConditionalGeneration reads sounds, too",
}
# Pooling models of the same families: a name without a head, or with another one
POOLING_SUFFIXES = ("Model", "ForSequenceClassification")
_GENERATE_SUFFIXES = ("ForCausalLM", "LMHeadModel")
_TEXT_HALVES = {"Gemma3": "Gemma3Text"}  # of families whose plain names mean more than text
_FAMILIES = {
    _TEXT_HALVES.get(family := name.removesuffix(suffix), family): name
    for name in MODELS
    for suffix in _GENERATE_SUFFIXES
    if name.endswith(suffix)
}
_SAME_FAMILY = {
    "Qwen2ForRewardModel": "Qwen2ForCausalLM",
    "Qwen2ForProcessRewardModel": "Qwen2ForCausalLM",
    "BertForSequenceClassification": "BertModel",
    "RobertaForSequenceClassification": "RobertaModel",
    "XLMRobertaForSequenceClassification": "XLMRobertaModel",
} | {family + suffix: name for family, name in _FAMILIES.items() for suffix in POOLING_SUFFIXES}


def get_model_class(architecture: str) -> type[DecoderModel]:
    """The class of an architecture, by its name in a config.json.

    Raises:
        ValueError: if we do not have it.
    """
    name = _SAME_FAMILY.get(architecture, architecture)
    if name in _INSTEAD:
        raise ValueError(
            f"architecture {architecture!r} is code that comes with its weights, and no such code "
            f"is ever run; {_INSTEAD[name]}."
        )
    if name not in MODELS:
        raise ValueError(
            f"architecture {architecture!r} is not supported; minivllm runs {', '.join(MODELS)}, "
            f"of these families ...{', ...'.join(POOLING_SUFFIXES)} as pooling models, and with "
            f"pictures or sound {', '.join(MULTIMODAL_MODELS)}."
        )
    return getattr(import_module(MODELS[name]), name)


def get_encoder_class(architecture: str) -> type[MultiModalEncoder]:
    """The class of a model's towers, by the whole model's architecture in a config.json."""
    return getattr(import_module(MULTIMODAL_MODELS[architecture]), architecture)


def get_decoders() -> dict[str, type[DecoderModel]]:
    """The classes of all decoders, by their ``model_type`` in a config.json."""
    return {
        family.replace("Text", "_Text").lower(): get_model_class(name)
        for family, name in _FAMILIES.items()
    }
