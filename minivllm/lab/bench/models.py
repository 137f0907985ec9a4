"""Benchmark models: random weights of well-known shapes, or a Hugging Face directory.

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
from minivllm.utils.validation import check

DTYPES = ("float32", "bfloat16", "float16")


@contextmanager
def bench_model(model: str, dtype: str) -> Iterator[tuple[Path, str]]:
    """Directory of a model, and our engine's ``load_format`` for it.

    It is the caller's own, the embedded one, or one of random numbers.

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
        yield path, "auto"
        return
    with TemporaryDirectory(prefix="minivllm-bench-") as name:
        directory = Path(name)
        (directory / "config.json").write_text(
            json.dumps(SHAPES[model] | {"dtype": dtype}), "utf-8"
        )
        yield directory, "dummy"
