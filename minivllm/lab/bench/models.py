"""Models to measure with: random weights of well-known shapes, or a directory of one's own.

Speed does not depend on what a model knows, so nothing needs to be downloaded. Beside a peer the
directory holds weights, made by transformers, and every engine loads the same files. Alone, our
engine needs config.json only and makes weights up where they are used (``load_format="dummy"``):
16 GB of random numbers need not go through a disk.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch

from minivllm.embedded import embedded_model_path
from minivllm.lab.sim.shapes import SHAPES
from minivllm.validation import check

DTYPES = ("float32", "bfloat16", "float16")


class BenchModel(NamedTuple):
    """Where a model is, and our engine's ``load_format`` for it."""

    directory: Path
    load_format: str


@contextmanager
def bench_model(model: str, dtype: str, has_peers: bool) -> Iterator[BenchModel]:
    """A directory of one's own, the embedded model, or one made of random numbers.

    Args:
        model: one of ``SHAPES``, "embedded", or the path of a Hugging Face directory.
        dtype: of the weights that are made, a name of torch's.
        has_peers: others load it too, so that random weights must be written to files.

    Raises:
        ValueError: for a name that is none of these, or another dtype.
    """
    check(dtype in DTYPES, "dtype", dtype, f"one of {', '.join(DTYPES)}")
    if model not in SHAPES:
        names = ", ".join(map(repr, (*SHAPES, "embedded")))
        path = embedded_model_path() if model == "embedded" else Path(model)
        check(path.is_dir(), "model", model, f"one of {names} or a Hugging Face directory")
        yield BenchModel(path, "auto")
        return
    with TemporaryDirectory(prefix="minivllm-bench-") as name:
        directory = Path(name)
        (directory / "config.json").write_text(json.dumps(SHAPES[model] | {"dtype": dtype}))
        if has_peers:
            _write_random_weights(directory, getattr(torch, dtype))
        yield BenchModel(directory, "auto" if has_peers else "dummy")


def _write_random_weights(directory: Path, dtype: torch.dtype) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory))
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
