"""show: a piece of our source in a notebook, highlighted, with each docstring's first line only."""

from __future__ import annotations

import ast
import inspect
import textwrap
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[2]


class Listing:
    """Source that a notebook highlights and a terminal prints, below the name of its file."""

    def __init__(self, file: str, source: str):
        self.text = f"# {file}\n{source}"

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        return {"text/markdown": f"```python\n{self.text}\n```", "text/plain": self.text}

    def __repr__(self) -> str:
        return self.text


def show(
    *codes: Any, first: str | None = None, last: str | None = None, without: tuple[str, ...] = ()
) -> None:
    """Display the source of functions, methods, properties, classes or kernels.

    Args:
        *codes: what to show.
        first: begin at the line that contains this; None is the beginning.
        last: end before the first line behind that one which contains this; None is the end.
        without: leave out the statements, with all that is indented below them, whose first line
            contains one of these: branches of a later chapter. A comment at the end says how many
            lines they have.

    Raises:
        ValueError: if the source has no such line, if the first line contains ``last``, too, or
            if there is no code between the two.
    """
    from IPython.display import display

    for code in codes:
        display(listing(code, first, last, without))


def listing(
    code: Any, first: str | None = None, last: str | None = None, without: tuple[str, ...] = ()
) -> Listing:
    """Return what ``show`` displays."""
    for wrapper in ("fget", "py_func", "fn"):  # of a property, of numba, of Triton
        code = getattr(code, wrapper, code)
    code = inspect.unwrap(code)
    lines = _folded(textwrap.dedent(inspect.getsource(code)))
    if without:
        lines = _left_out("\n".join(lines), without)
    begin = 0 if first is None else _find(lines, first, 0)
    if last is not None and last in lines[begin]:
        raise ValueError(f"the listing would be empty: its first line has {last!r}, too.")
    end = len(lines) if last is None else _find(lines, last, begin + 1)
    source = textwrap.dedent("\n".join(lines[begin:end])).strip("\n")
    if not any(line.strip() and line.lstrip()[0] != "#" for line in source.splitlines()):
        raise ValueError(f"the listing would be empty: there is no code behind {first!r}.")
    file = Path(inspect.getsourcefile(code)).relative_to(PACKAGE.parent).as_posix()
    return Listing(file, source)


def _folded(source: str) -> list[str]:
    """The lines without what follows the first line of a docstring."""
    lines: list[str | None] = list(source.splitlines())
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node):
            text = node.body[0]
            if text.end_lineno > text.lineno:
                lines[text.lineno - 1] = f'{lines[text.lineno - 1].rstrip()}"""'
                lines[text.lineno : text.end_lineno] = [None] * (text.end_lineno - text.lineno)
    return [line for line in lines if line is not None]


def _left_out(source: str, without: tuple[str, ...]) -> list[str]:
    """The lines without the statements that begin with a line that contains one of these."""
    lines = source.splitlines()
    found = set()
    left_out: set[int] = set()
    inner: set[int] = set()  # lines of a ``try`` that has lost all its handlers
    nodes = list(ast.walk(ast.parse(source)))
    for node in nodes:
        if not isinstance(node, (ast.stmt, ast.ExceptHandler)) or node.lineno == 1:
            continue
        texts = {text for text in without if text in lines[node.lineno - 1]}
        if not texts:
            continue
        found |= texts
        first = node.lineno - 1
        while lines[first - 1].lstrip().startswith("#"):  # what is said of it
            first -= 1
        left_out.update(range(first, node.end_lineno))
    for node in nodes:
        if not isinstance(node, ast.Try) or not node.handlers or node.finalbody:
            continue
        if all(handler.lineno - 1 in left_out for handler in node.handlers):
            left_out.add(node.lineno - 1)
            inner.update(range(node.lineno, node.body[-1].end_lineno))
    if missing := [text for text in without if text not in found]:
        raise ValueError(f"no statement begins with a line that has {missing[0]!r}.")
    kept = [
        line[4:] if index in inner else line
        for index, line in enumerate(lines)
        if index not in left_out
    ]
    return [*kept, f"    # left out: {len(left_out)} lines with {', '.join(without)}"]


def _find(lines: list[str], text: str, start: int) -> int:
    for index in range(start, len(lines)):
        if text in lines[index]:
            return index
    raise ValueError(f"the source has no line with {text!r}.")
