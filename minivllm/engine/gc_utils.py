"""Garbage collection: what is there for good is not searched again and again.

(vLLM: vllm/utils/gc_utils.py)
"""

from __future__ import annotations

import gc
from functools import cache


def freeze_gc_heap() -> None:
    """Leave all objects that are there now out of the collector's searches.

    Libraries, model and tokenizer are some 300,000 objects. A full collection looks at each, which
    takes a quarter of a second, holds the interpreter lock all the while, and finds nothing.
    """
    gc.collect()
    gc.freeze()


@cache
def freeze_libraries() -> None:
    """Do that once in a process, before there is an engine: one may end, and leave its memory."""
    freeze_gc_heap()
