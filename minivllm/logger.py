"""Logging in vLLM's manner: to standard output, so that a notebook's stderr stays empty."""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from minivllm import envs

_filters = threading.Lock()


class _Handler(logging.StreamHandler):
    """Log handler for the current ``sys.stdout`` or ``stderr``: notebooks and pytest replace it."""

    def __init__(self, stream: str):
        logging.Handler.__init__(self)
        self._stream = stream

    @property
    def stream(self):
        return getattr(sys, self._stream)


def init_logger(name: str) -> logging.Logger:
    """A logger under ``minivllm``; its level is ``MINIVLLM_LOGGING_LEVEL`` at first use."""
    root = logging.getLogger("minivllm")
    if not root.handlers:
        level = envs.logging_level()
        handler = _Handler("stdout")
        handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
        root.addHandler(handler)
        root.setLevel(level)
        root.propagate = False
    return logging.getLogger(name)


def show_on_stderr(name: str) -> None:
    """Let lines of this logger go to stderr as they are, beside a command's own output."""
    logger = init_logger(name)
    if not logger.handlers:
        logger.addHandler(_Handler("stderr"))
        logger.setLevel(logging.INFO)
        logger.propagate = False


@contextmanager
def silenced(*names: str) -> Iterator[None]:
    """Context manager: these loggers log nothing. (What they would say is in the trace.)"""
    loggers = [init_logger(name) for name in names]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


@contextmanager
def without_warnings() -> Iterator[None]:
    """Context manager: Python warns of nothing. It is for a text of a user's or a model's.

    Python's parsers warn of odd texts as of a programmer's mistakes, on stderr. Filters of warnings
    belong to the process, so one thread at a time changes them.
    """
    with _filters, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
