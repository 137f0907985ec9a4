"""Freeze long-lived objects, so that the garbage collector skips them.

(vLLM: vllm/utils/gc_utils.py)
"""

from __future__ import annotations

import gc
from functools import cache


def freeze_gc_heap() -> None:
    """Freeze all objects that exist now: the garbage collector does not search them any more.

    Libraries, model and tokenizer are some 300,000 objects. A full collection looks at each, which
    takes a quarter of a second, holds the interpreter lock all the while, and finds nothing.
    """
    gc.collect()
    gc.freeze()


@cache
def freeze_libraries() -> None:
    """Freeze once in a process, before it has an engine: an engine may end and free its memory."""
    freeze_gc_heap()
