"""require_triton: kernels can only be graded where Triton interprets them."""

from __future__ import annotations

import os

from minivllm.course.grading.run import Fault


def require_triton() -> None:
    """Raise ``Fault`` unless kernels can be interpreted."""
    try:
        import triton  # noqa: F401
    except ImportError as error:
        raise Fault(f"this lab needs Triton, which is made for Linux ({error})") from error
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise Fault("set TRITON_INTERPRET=1 before Triton is first imported: kernels are watched")
