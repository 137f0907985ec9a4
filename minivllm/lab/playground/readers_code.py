"""Code of a reader: compiled and run here; what is wrong with it is said with the line."""

from __future__ import annotations

import traceback
from typing import Any

FILE = "<your code>"


class InReadersCode(ValueError):
    """The reader's code cannot be compiled, or raised; ``line`` is where, or None."""

    def __init__(self, message: str, line: int | None):
        super().__init__(message)
        self.line = line

    @classmethod
    def of(cls, error: BaseException) -> InReadersCode:
        """What an error says, and the last line of the reader's code that led to it."""
        what = f"{type(error).__name__}: {error}".rstrip(": ")
        if isinstance(error, SyntaxError) and error.filename == FILE:
            return cls(f"SyntaxError: {error.msg}", error.lineno)
        lines = [at.lineno for at in traceback.extract_tb(error.__traceback__) if at.filename == FILE]
        return cls(what, lines[-1] if lines else None)


def run_source(source: str) -> dict[str, Any]:
    """The names that the reader's code defines.

    Raises:
        InReadersCode: if it cannot be compiled or raises.
    """
    names: dict[str, Any] = {"__name__": "reader"}
    try:
        exec(compile(source, FILE, "exec"), names)
    except BaseException as error:  # SystemExit, too: the page goes on
        raise InReadersCode.of(error) from error
    return names
