"""make_processor: transformers' own processor of a model's pictures or sounds, and their tokens.

transformers and PIL are imported when they are needed, and torchvision never is. A processor scales
one item and says how many placeholders it needs; the prompt is expanded by who asks for that.
(vLLM: ``_call_hf_processor`` and ``_get_prompt_updates`` of each model's file)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minivllm.models.audio.processors import Qwen2AudioProcessor
from minivllm.models.vision.processors import LlavaProcessor, Qwen2VLProcessor
from minivllm.multimodal.processing import MultiModalProcessor

PROCESSORS: dict[str, Callable[[str, Any, Any], MultiModalProcessor]] = {
    "LlavaForConditionalGeneration": LlavaProcessor,
    "Qwen2VLForConditionalGeneration": Qwen2VLProcessor,
    "Qwen2AudioForConditionalGeneration": Qwen2AudioProcessor,
}


def make_processor(model: str, hf_config: Any, tokenizer: Any) -> MultiModalProcessor | None:
    """Make the processor of a model's items; None of a text model.

    Args:
        model: its directory.
        hf_config: its config.json, as transformers reads it.
        tokenizer: names the placeholders; None: they have their usual names.

    Raises:
        ValueError: if the directory has no such processor, or pillow is not installed.
    """
    architecture = (getattr(hf_config, "architectures", None) or [None])[0]
    make = PROCESSORS.get(architecture)
    return None if make is None else make(model, hf_config, tokenizer)
