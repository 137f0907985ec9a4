"""The chat model that ships with the package: a Qwen2 of a few million parameters.

It is trained from nothing on generated text, so it needs no download: `data/` makes the text,
`training/` the weights in `checkpoint/`, and `evaluation/` measures what they can do. The engine
asks only where the checkpoint is.
"""

from pathlib import Path


def embedded_model_path() -> Path:
    """Directory of the embedded checkpoint, in Hugging Face form."""
    return Path(__file__).parent / "checkpoint"
