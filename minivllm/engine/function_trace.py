"""Function trace: each call of a function of minivllm, written to a file to find a hang.

(vLLM: VLLM_TRACE_FUNCTION; enable_trace_function_call in vllm/logger.py)
"""

from __future__ import annotations

import os
import sys
import threading
from datetime import datetime
from pathlib import Path

import minivllm
from minivllm import envs
from minivllm.logger import init_logger

logger = init_logger(__name__)
_ROOT = os.path.dirname(minivllm.__file__)


def start_if_asked() -> None:
    """With ``MINIVLLM_TRACE_FUNCTION=1``, trace this thread and those it starts from now on."""
    if not envs.trace_function() or sys.getprofile() is not None:
        return
    directory = envs.cache_root() / "function_traces"
    directory.mkdir(parents=True, exist_ok=True)
    now = datetime.now().strftime("%Y-%m-%d_%H-%M-%S.%f")
    path = directory / f"MINIVLLM_TRACE_FUNCTION_for_process_{os.getpid()}_at_{now}.log"
    logger.warning(
        "MINIVLLM_TRACE_FUNCTION is on: every call is written to %s. This is slow, and for "
        "debugging only.",
        path,
    )
    start(path)


def start(path: Path) -> None:
    """Write calls and returns to a file until ``sys.setprofile(None)``, each as it happens."""
    file = path.open("a", buffering=1)

    def listen(frame, event: str, arg) -> None:
        if event not in ("call", "return") or not frame.f_code.co_filename.startswith(_ROOT):
            return
        here, there = (_place(f) for f in (frame, frame.f_back))
        words = ("Call to", "from") if event == "call" else ("Return from", "to")
        print(f"{datetime.now()} {words[0]} {here} {words[1]} {there}", file=file)

    threading.setprofile(listen)
    sys.setprofile(listen)


def _place(frame) -> str:
    if frame is None:
        return "the start of the thread"
    return f"{frame.f_code.co_name} in {frame.f_code.co_filename}:{frame.f_lineno}"
