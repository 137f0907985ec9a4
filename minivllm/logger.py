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


class _StdoutHandler(logging.StreamHandler):
    """Log handler for the current ``sys.stdout``, which notebooks and pytest replace."""

    def __init__(self):
        logging.Handler.__init__(self)

    @property
    def stream(self):
        return sys.stdout


def init_logger(name: str) -> logging.Logger:
    """A logger under ``minivllm``; its level is ``MINIVLLM_LOGGING_LEVEL`` at first use."""
    root = logging.getLogger("minivllm")
    if not root.handlers:
        level = envs.logging_level()
        handler = _StdoutHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
        root.addHandler(handler)
        root.setLevel(level)
        root.propagate = False
    return logging.getLogger(name)


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
