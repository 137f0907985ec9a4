"""language_half: the decoder of a model of pictures or sound, as a text model's config says it."""

from __future__ import annotations

from typing import Any

from minivllm.models.registry import get_decoders
from minivllm.utils.validation import check, is_int


def language_half(hf: Any) -> dict[str, Any]:
    """The ``ModelConfig`` fields of the decoder of a whole config.

    Raises:
        ValueError: for a decoder that we do not have.
    """
    text = hf.get_text_config()
    decoders = get_decoders()
    known = ", ".join(decoders)
    check(text.model_type in decoders, "text_config.model_type", text.model_type, f"one of {known}")
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
