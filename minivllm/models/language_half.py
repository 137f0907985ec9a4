"""What a model of pictures or sound says of its language half: its decoder, its placeholders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minivllm.models.decoder import DecoderModel
from minivllm.models.registry import get_decoders
from minivllm.utils.validation import check, is_int


def language_half(hf: Any, decoder: type[DecoderModel] | None = None) -> dict[str, Any]:
    """The ``ModelConfig`` fields of the decoder of a whole config.

    Args:
        hf: the whole config.
        decoder: its class; None: as its ``model_type`` says.

    Raises:
        ValueError: for a decoder that we do not have.
    """
    text = hf.get_text_config()
    if decoder is None:
        decoders = get_decoders()
        allowed = f"one of {', '.join(decoders)}"
        check(text.model_type in decoders, "text_config.model_type", text.model_type, allowed)
        decoder = decoders[text.model_type]
    return decoder.read_config(text) | {
        "architecture": decoder.__name__,
        "tie_word_embeddings": hf.tie_word_embeddings,
    }


def placeholder_id(hf: Any, *names: str) -> int:
    """The token that stands for a picture's or a sound's embeddings, by its field in config.json.

    Args:
        hf: the whole config.
        names: of the field; later ones are older.

    Raises:
        ValueError: if it is not among the model's tokens.
    """
    value: Any = next((getattr(hf, name) for name in names if hasattr(hf, name)), None)
    size = hf.get_text_config().vocab_size
    ok = is_int(value, 0) and value < size
    check(ok, f"{names[0]} in config.json", value, f"a token, from 0 to {size - 1}")
    return value


def placeholder_texts(tokenizer: Any, **ids: int) -> dict[str, str]:
    """The text of each modality's placeholder."""
    if tokenizer is None:
        return {modality: f"<{modality}>" for modality in ids}
    return {modality: tokenizer.convert_ids_to_tokens(token) for modality, token in ids.items()}


def check_modality(modality: str, known: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for a modality that a model does not read."""
    check(modality in known, "modality", modality, f"one of {', '.join(known)} for this model")
