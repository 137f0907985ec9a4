"""Parts of an engine for pictures and sounds: the front end's, and the limits of its encoder.

(vLLM: ``MultiModalBudget`` in vllm/multimodal/encoder_budget.py)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from minivllm.config import VllmConfig
from minivllm.config.multimodal import MultiModalConfig
from minivllm.models.model_config import ModelConfig
from minivllm.models.processors import make_processor
from minivllm.multimodal.preprocessor import MultiModalPreprocessor
from minivllm.utils.validation import check


def make_preprocessor(config: VllmConfig, tokenizer: Any) -> MultiModalPreprocessor | None:
    """Make the front end's part; None for a model that reads text alone.

    Raises:
        ValueError: if the model's own processor cannot be had.
    """
    model = config.model_config
    directory = str(config.load_config.model_directory)
    processor = make_processor(directory, model.hf_config, tokenizer)
    if processor is None or not model.is_multimodal:
        return None
    return MultiModalPreprocessor(directory, processor, config.multimodal_config)


def encoder_limits(
    args: Any,
    model: ModelConfig,
    directory: Path,
    *,
    multimodal_config: MultiModalConfig,
    max_num_batched_tokens: int,
) -> dict[str, int]:
    """The encoder's fields of a ``SchedulerConfig``, in embeddings; none for a text model.

    The budget of a step is that of its tokens, or one whole item if that has more embeddings; and
    as many are kept. Both may be given.

    Args:
        args: of the engine.
        model: its config.
        directory: with the files of the model's own processor.
        multimodal_config: a modality of which a prompt may have no item does not count.
        max_num_batched_tokens: the budget of a step.

    Raises:
        ValueError: for ``disable_chunked_mm_input`` with an item that no step can hold whole.
    """
    processor = make_processor(str(directory), model.hf_config, None)
    if processor is None or not model.is_multimodal:
        return {}
    most = [
        size
        for modality, size in processor.max_embeddings.items()
        if multimodal_config.get_limit_per_prompt(modality)
    ]
    longest = max(most, default=0)
    ok = not args.disable_chunked_mm_input or longest <= max_num_batched_tokens
    allowed = f"at least {longest}, one item of this model, with disable_chunked_mm_input=True"
    check(ok, "max_num_batched_tokens", max_num_batched_tokens, allowed)
    usual = max(max_num_batched_tokens, longest) if longest else 0
    return {
        "max_num_encoder_input_tokens": args.max_num_encoder_input_tokens or usual,
        "encoder_cache_size": args.encoder_cache_size or usual,
    }
