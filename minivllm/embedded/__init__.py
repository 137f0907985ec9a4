"""The embedded model: the chat model of the package, a Qwen2 of a few million parameters.

It is trained from nothing on generated text, so it needs no download: `data/` makes the text, and
`lab/training/` the weights in `checkpoint/`; there, too, is measured what they can do. The engine
asks only where the checkpoint is. In `draft/` is a smaller one that guesses what this one will say,
in `adapters/` are LoRA adapters of it. In `embedder/` is one tuned from it to give vectors, in
`classifier/` a head on it, in `vision/` one that answers about pictures, too.
"""

from pathlib import Path

from minivllm.utils.validation import check


def embedded_model_path() -> Path:
    """Directory of the embedded checkpoint, in Hugging Face form."""
    return Path(__file__).parent / "checkpoint"


def embedded_draft_path() -> Path:
    """Directory of a draft model of it, for ``speculative_config={"model": ...}``."""
    return Path(__file__).parent / "draft"


def embedded_embedder_path() -> Path:
    """Directory of an embedder tuned from it, in the form of Sentence Transformers."""
    return Path(__file__).parent / "embedder"


def embedded_classifier_path() -> Path:
    """Directory of a classifier of requests: a head whose index names the model's own weights."""
    return Path(__file__).parent / "classifier"


def embedded_vision_path() -> Path:
    """Directory of a picture model: a SigLIP eye before the language half, in LLaVA's form."""
    return Path(__file__).parent / "vision"


def embedded_adapter_path(name: str) -> Path:
    """Directory of a LoRA adapter of it, in PEFT's form: ``"pirate"`` or ``"sql-lora"``.

    Raises:
        ValueError: if there is no adapter of this name.
    """
    adapters = Path(__file__).parent / "adapters"
    names = sorted(path.name for path in adapters.iterdir())
    check(name in names, "name", name, f"one of {', '.join(names)}")
    return adapters / name
