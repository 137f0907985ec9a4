"""Benchmark models: random weights of well-known shapes, a pulled model, or a directory.

Speed does not depend on what a model knows, so nothing needs to be downloaded. The engine needs
config.json only and makes weights up where they are used (``load_format="dummy"``): 16 GB of random
numbers need not go through a disk.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from minivllm.embedded import embedded_model_path
from minivllm.lab.sim.shapes import SHAPES
from minivllm.models.loader import load_config
from minivllm.models.model_config import ModelConfig
from minivllm.models.packages import packed_models, pulled_model
from minivllm.quantization import gguf
from minivllm.utils.validation import check

DTYPES = ("float32", "bfloat16", "float16")


@contextmanager
def bench_model(model: str, dtype: str) -> Iterator[tuple[Path, str]]:
    """Directory of a model, and our engine's ``load_format`` for it.

    It is the caller's own, the embedded one, or one of random numbers.

    Args:
        model: one of ``SHAPES``, "embedded", the name of a model that was pulled, or the path of
            a Hugging Face directory or a GGUF file.
        dtype: of the weights that are made, a name of torch's.

    Raises:
        FileNotFoundError: for a model that has not been pulled.
        ValueError: for a name that is none of these, or another dtype.
    """
    check(dtype in DTYPES, "dtype", dtype, f"one of {', '.join(DTYPES)}")
    if model not in SHAPES:
        yield _path(model), "auto"
        return
    with TemporaryDirectory(prefix="minivllm-bench-") as name:
        directory = Path(name)
        (directory / "config.json").write_text(json.dumps(SHAPES[model] | {"dtype": dtype}))
        yield directory, "dummy"


def _path(model: str) -> Path:
    if model == "embedded":
        return embedded_model_path()
    path = Path(model)
    if model in packed_models() and not path.is_dir():
        path = pulled_model(model)
    names = ", ".join(map(repr, (*SHAPES, "embedded", *packed_models())))
    ok = path.is_dir() or gguf.is_gguf(path)
    check(ok, "model", model, f"one of {names}, a Hugging Face directory or a GGUF file")
    return path


def bench_config(path: Path) -> ModelConfig:
    """Shapes of a model, as ``bench_model`` gives its path."""
    if not gguf.is_gguf(path):
        return load_config(path)
    print(
        "The weights are packed: their bytes on the roofline are those of floats, more than real."
    )
    return gguf.load_config(path)
