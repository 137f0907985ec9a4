"""Generation config: what a model's ``generation_config.json`` says of sampling, and of the end.

(vLLM: ``get_diff_sampling_param`` in vllm/config/model.py)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from minivllm.utils.json_files import read_json_object

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
    return read_json_object(file) if file.is_file() else {}


def sampling_defaults(generation: dict[str, Any]) -> dict[str, Any]:
    """Defaults of SamplingParams among a generation config's values. Other values are left out."""
    return {
        ours: generation[theirs]
        for theirs, ours in _SAMPLING.items()
        if generation.get(theirs) is not None
    }
