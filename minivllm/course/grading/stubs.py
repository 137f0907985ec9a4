"""Stubs of labs: their source, as it is shown, with docstrings in the language that is set.

A stub's docstring is what the lab asks for. The code is English in every language.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from minivllm.lab.translation import TEXTS

_DOCUMENTED = (ast.ClassDef, ast.FunctionDef)


def documented(tree: ast.AST) -> Iterator[tuple[str, ast.Expr]]:
    """Yield each docstring of classes and functions, without its indent, and its node."""
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node)):
            first = node.body[0]
            assert isinstance(first, ast.Expr), "get_docstring has found it"
            yield text, first


def stub_source(stub: Callable[..., Any] | type) -> str:
    """Source of a stub, to be copied."""
    lines = inspect.getsource(stub).splitlines(keepends=True)
    if not TEXTS:
        return "".join(lines)
    for text, node in sorted(documented(ast.parse("".join(lines))), key=lambda one: -one[1].lineno):
        translation = TEXTS.get(text)
        if translation is None:
            continue
        indent = " " * node.col_offset
        said = f'"""{translation}"""' if "\n" not in translation else f'"""{translation}\n"""'
        new = [f"{indent}{line}".rstrip() + "\n" for line in said.splitlines()]
        lines[node.lineno - 1 : node.end_lineno] = new
    return "".join(lines)
