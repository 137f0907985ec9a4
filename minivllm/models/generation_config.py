"""Generation config: what a model's ``generation_config.json`` says of sampling, and of the end.

(vLLM: ``get_diff_sampling_param`` in vllm/config/model.py)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

# What it may say of sampling, and the names here.
_SAMPLING = {
    name: name
    for name in (
        "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty",
        "frequency_penalty",
    )
} | {"max_new_tokens": "max_tokens"}  # fmt: skip


def read_generation_config(directory: Path) -> dict[str, Any]:
    """Read ``generation_config.json``; an empty dict if there is none.

    Raises:
        ValueError: if it cannot be read, or is no object.
    """
    file = directory / "generation_config.json"
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{file} must hold an object, got {type(found).__name__}.")
    return found


def sampling_defaults(generation: dict[str, Any]) -> dict[str, Any]:
    """Defaults of SamplingParams among a generation config's values. Other values are left out."""
    return {
        ours: generation[theirs]
        for theirs, ours in _SAMPLING.items()
        if generation.get(theirs) is not None
    }
