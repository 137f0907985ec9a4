"""Perplexities of a real model, SmolLM2-135M-Instruct: recorded, as the model does not ship.

``pytest -m real`` measures all of them again.
"""

from __future__ import annotations

from minivllm.utils.toml_data import load_toml


def perplexities() -> dict[str, dict[str, float]]:
    """Perplexity of the first chapter of Alice in Wonderland (2,803 tokens), in two tables.

    ``caches``: by dtype or ``kv_cache_dtype``; ``weights``: by what ``minivllm quantize`` made of
    the model, in groups of 64.
    """
    return load_toml(__package__, "smollm2")
