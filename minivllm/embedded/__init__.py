"""The embedded model: the chat model of the package, a Qwen2 of a few million parameters.

It is trained from nothing on generated text, so it needs no download: `data/` makes the text,
`training/` the weights in `checkpoint/`, and `evaluation/` measures what they can do. The engine
asks only where the checkpoint is. In `draft/` is a smaller one that guesses what this one will say.
"""

from pathlib import Path


def embedded_model_path() -> Path:
    """Directory of the embedded checkpoint, in Hugging Face form."""
    return Path(__file__).parent / "checkpoint"


def embedded_draft_path() -> Path:
    """Directory of a draft model of it, for ``speculative_config={"model": ...}``."""
    return Path(__file__).parent / "draft"
