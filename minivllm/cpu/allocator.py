"""Memory allocator of a CPU: glibc's malloc, set to keep freed memory for the next step.

(vLLM's CPU build asks for another one instead: ``LD_PRELOAD=libtcmalloc.so``)
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

_M_TRIM_THRESHOLD = -1  # numbers of malloc.h
_M_MMAP_THRESHOLD = -3


def keep_freed_memory() -> None:
    """Let the C library keep up to half a GiB of freed memory, in pieces of up to 64 MiB.

    glibc gives large pieces back to the system, so that the activations of every prefill would be
    made of new pages, each of them cleared first. For the whole process, and nothing elsewhere.
    """
    libc: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, 2**26)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**29)
