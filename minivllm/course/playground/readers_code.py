"""Code of a reader: compiled and run here; what is wrong with it is said with the line."""

from __future__ import annotations

import ast
import traceback
from io import StringIO
from typing import Any

from minivllm.utils.validation import check

FILE = "<your code>"  # as the reader's code is called
MODULE = "reader"
MOST_PRINTED = 4000  # characters, beyond which no further text is kept


class Printed(StringIO):
    """A stream for what the reader's code prints: it keeps the beginning."""

    def write(self, text: str) -> int:
        """Keep the text, unless there is much already."""
        return super().write(text) if self.tell() < MOST_PRINTED else len(text)


class InReadersCode(ValueError):
    """The reader's code cannot be compiled, or raised; ``line`` is where, or None."""

    def __init__(self, message: str, line: int | None):
        super().__init__(message)
        self.line = line

    @classmethod
    def of(cls, error: BaseException) -> InReadersCode:
        """Make one of an error: its text, and the last line of the reader's code that led to it."""
        what = f"{type(error).__name__}: {error}".rstrip(": ")
        if isinstance(error, SyntaxError) and error.filename == FILE:
            return cls(f"SyntaxError: {error.msg}", error.lineno)
        lines = [
            at.lineno for at in traceback.extract_tb(error.__traceback__) if at.filename == FILE
        ]
        return cls(what, lines[-1] if lines else None)


def run_source(source: str) -> dict[str, Any]:
    """The names that the reader's code defines.

    Raises:
        InReadersCode: if it cannot be compiled or raises.
    """
    return _run(_parsed(source))


def value_of(source: str) -> Any:
    """The value of the last statement: an expression, a definition or an assignment; else None.

    Raises:
        InReadersCode: if the code cannot be compiled or raises.
    """
    module = _parsed(source)
    name = None
    match module.body[-1:]:
        case [ast.Expr(value) as last]:
            name = "_value"
            kept = ast.Assign([ast.Name(name, ast.Store())], value)
            module.body[-1] = ast.fix_missing_locations(ast.copy_location(kept, last))
        case [ast.FunctionDef(name=name) | ast.ClassDef(name=name)]:
            pass
        case [ast.Assign(targets=[ast.Name(id=name)])]:
            pass
    names = _run(module)
    return None if name is None else names[name]


def _parsed(source: str) -> ast.Module:
    check(isinstance(source, str), "source", source, "a text")
    try:
        return ast.parse(source, FILE)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise InReadersCode.of(error) from error


def _run(module: ast.Module) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": MODULE}
    try:
        exec(compile(module, FILE, "exec"), names)
    except BaseException as error:  # SystemExit, too: the page goes on
        raise InReadersCode.of(error) from error
    return names
