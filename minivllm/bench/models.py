"""Models to measure with: random weights of well-known shapes, or a directory of one's own.

Speed does not depend on what a model knows, so nothing needs to be downloaded. The directory is
made by transformers, in Hugging Face's format, and every engine loads the same files.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from minivllm.models.embedded import embedded_model_path
from minivllm.validation import check

DTYPES = ("float32", "bfloat16", "float16")
_COMMON = {
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
}
SHAPES = {
    "tiny": {  # 3.9 million parameters
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "intermediate_size": 704,
        "vocab_size": 4096,
        "max_position_embeddings": 4096,
    },
    "small": {  # 494 million: the shape of Qwen2-0.5B and Qwen2.5-0.5B
        "hidden_size": 896,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "intermediate_size": 4864,
        "vocab_size": 151936,
        "max_position_embeddings": 32768,
        "rope_theta": 1e6,
    },
}


@contextmanager
def model_directory(model: str, dtype: str) -> Iterator[Path]:
    """Where a model is: a directory of one's own, "embedded", or one made of random weights.

    Args:
        model: one of ``SHAPES``, "embedded", or the path of a Hugging Face directory.
        dtype: of the weights that are made, a name of torch's.

    Raises:
        ValueError: for a name that is none of these, or another dtype.
    """
    check(dtype in DTYPES, "dtype", dtype, f"one of {', '.join(DTYPES)}")
    if model not in SHAPES:
        names = ", ".join(map(repr, (*SHAPES, "embedded")))
        path = embedded_model_path() if model == "embedded" else Path(model)
        check(path.is_dir(), "model", model, f"one of {names} or a Hugging Face directory")
        yield path
        return
    with TemporaryDirectory(prefix="minivllm-bench-") as directory:
        _write_random_model(Path(directory), SHAPES[model], getattr(torch, dtype))
        yield Path(directory)


def _write_random_model(directory: Path, shape: dict, dtype: torch.dtype) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # here and when peers load it
    config = Qwen2Config(**_COMMON, **shape)
    with torch.device("meta"):
        model = Qwen2ForCausalLM(config)
    model = model.to(dtype).to_empty(device="cpu")
    model.tie_weights()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.fill_(1)
            elif name.endswith("bias"):
                parameter.normal_(0, 0.1, generator=generator)
            else:  # as wide as keeps activations in range, so that greedy choices are clear
                parameter.normal_(0, parameter.shape[1] ** -0.5, generator=generator)
    model.save_pretrained(directory)
