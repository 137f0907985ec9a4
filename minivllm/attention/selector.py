"""Attention backend selector: by name, or the best that can run here.

A backend's file is imported when it is chosen and not before: some need packages of their own.
(vLLM: vllm/v1/attention/selector.py)
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec

import torch

from minivllm.attention.backend import AttentionBackend
from minivllm.logger import init_logger
from minivllm.utils.numba_support import numba_obstacle, numbers

logger = init_logger(__name__)

_CLASSES = {
    "reference": "minivllm.attention.reference.Reference",
    "paged_torch": "minivllm.attention.paged_torch.PagedTorch",
    "paged_numba": "minivllm.cpu.attention.paged_numba.PagedNumba",
    "paged_triton": "minivllm.attention.paged_triton.PagedTriton",
}


def make_backend(name: str, device: torch.device) -> AttentionBackend:
    """The backend called ``name``; "auto" is explained in the log.

    Raises:
        ValueError: if it cannot run on this device or in this environment, saying what would do.
    """
    if name == "auto":
        name, why = _best_for(device)
        logger.info("Using %s attention: %s.", name, why)
    elif (obstacle := _obstacle(name, device)) is not None:
        raise ValueError(f"attention_backend={name!r} {obstacle}.")
    module, _, class_name = _CLASSES[name].rpartition(".")
    return getattr(importlib.import_module(module), class_name)()


def _best_for(device: torch.device) -> tuple[str, str]:
    """The name of the fastest backend that can run, and the reason."""
    kind = "a GPU" if device.type == "cuda" else "a CPU"
    first = "paged_triton" if device.type == "cuda" else "paged_numba"
    package = first.removeprefix("paged_")
    if _obstacle(first, device) is None:
        return first, f"{kind}, and {package} is installed"
    what = numba_obstacle() if package == "numba" else "not installed"
    return "paged_torch", f"{kind}, and {package} is {what}"


def _obstacle(name: str, device: torch.device) -> str | None:
    """Why a backend cannot run, as the end of a sentence; None if it can."""
    if name == "paged_numba":
        if device.type != "cpu":
            return "runs on a CPU only; use 'paged_triton' or 'auto'"
        if (obstacle := numba_obstacle()) is not None:
            return (
                f"needs numba 0.67 or later, but numba is {obstacle}: pip install -U numba, or use "
                "'paged_torch' or 'auto'"
            )
    if name == "paged_triton":
        if find_spec("triton") is None:
            return "needs triton, which is available for Linux only; use 'paged_torch' or 'auto'"
        if device.type == "cpu":
            return _interpreter_obstacle()
    return None


def _interpreter_obstacle() -> str | None:
    """Why Triton's interpreter cannot be used: it is chosen when Triton is first imported."""
    import numpy
    import triton
    from triton.runtime.interpreter import InterpretedFunction

    if not isinstance(triton.language.sum, InterpretedFunction):
        return (
            "on a CPU needs Triton's interpreter: set TRITON_INTERPRET=1 in the environment before "
            "triton is first imported, or use 'paged_torch' or 'auto'"
        )
    if numbers(numpy.__version__) >= (2, 4) and numbers(triton.__version__) < (3, 7, 1):
        return (
            f"on a CPU: the interpreter of Triton {triton.__version__} fails with NumPy "
            f"{numpy.__version__}; install triton>=3.7.1 or numpy<2.4"
        )
    return None
