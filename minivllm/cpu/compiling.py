"""Compiling takes a while, once: people who wait are told, and it can be done ahead."""

from __future__ import annotations

import sys
import time
from logging import DEBUG, INFO
from typing import Any

from numba.core import event

from minivllm.logger import init_logger
from minivllm.utils.notebook import show_until_the_cell_ends

logger = init_logger(__name__)

TOLD_AFTER = 2.0  # seconds of compiling, which are no reason to say anything
LINE = "Compiling kernels for this CPU, once: about 10 s."


class CompileListener(event.Listener):
    """Listener that says once per process that kernels are being compiled, and logs the time.

    To people: at a terminal or a command, and in a notebook, whose stored output must be the same
    in the first run and the second. Elsewhere it is a line for debugging.

    ``seconds`` is how long compiling has taken until now.
    """

    def __init__(self):
        self._depth = 0
        self.seconds = 0.0
        self._begin = 0.0
        self._told = False

    def on_start(self, event: Any) -> None:
        if self._depth == 0:
            self._begin = time.perf_counter()
        self._depth += 1
        self._tell()  # what a kernel calls is compiled meanwhile

    def on_end(self, event: Any) -> None:
        self._tell()
        self._depth -= 1
        if self._depth == 0:
            self.seconds += time.perf_counter() - self._begin
            logger.debug("Compiled for %.1f s so far.", self.seconds)

    def _tell(self) -> None:
        seconds = self.seconds + time.perf_counter() - self._begin
        if self._told or seconds < TOLD_AFTER:
            return
        self._told = True
        to_people = sys.stdout.isatty() or bool(logger.handlers)  # a command has given it one
        logger.log(INFO if to_people else DEBUG, LINE)
        show_until_the_cell_ends(LINE)


listener = CompileListener()
event.register("numba:compile", listener)
