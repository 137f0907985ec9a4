"""Kernel runs: a reader's Triton kernel, run beside its specification in PyTorch.

Every number that a kernel must not read is NaN, so one that is read spoils the result.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

from minivllm.course.grading.function_lab import call
from minivllm.course.grading.run import Fault

NAN = float("nan")


def check_kernel(function: Callable, runs: Iterable[tuple[str, Callable, Any]]) -> int:
    """Run a kernel on some inputs. Returns how many.

    Args:
        function: the reader's, with ``@triton.jit`` above it.
        runs: by name, what launches the kernel and returns its output, and the right output.

    Raises:
        Fault: if Triton cannot run here, or an output is not the right one.
    """
    if isinstance(function, FunctionType):
        raise Fault("put @triton.jit above the function")
    num_runs = 0
    for name, launch, right in runs:
        got = call(launch, function)
        if (got.isnan() & ~right.isnan()).any():
            raise Fault(f"{name}: NaN comes out: not written, or read where no number is")
        if (right.isnan() & ~got.isnan()).any():
            raise Fault(f"{name}: a place was written that is not the kernel's")
        error = float((got - right).nan_to_num().abs().max())
        if error > 1e-3:
            raise Fault(f"{name}: off by up to {error:.2g} from the specification")
        num_runs += 1
    return num_runs


def require_triton() -> None:
    """Raise ``Fault`` unless kernels can run: on a GPU, or interpreted."""
    try:
        import torch
        import triton  # noqa: F401
    except ImportError as error:
        raise Fault(f"this lab needs Triton, which is made for Linux ({error})") from error
    if not (torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"):
        raise Fault("without a GPU set TRITON_INTERPRET=1 before Triton is first imported")
