"""Messages: the texts in a piece of Python that a reader sees, and a tree in which they are others.

A message is a string of two words or more that is no docstring: a single word may be a key. An
f-string needs one word, and is a template, with its expressions in braces as Python writes them:
``"step {r.step:2d}: {way}"``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

_WORD = re.compile(r"[A-Za-z][a-z]+")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

Field = ast.FormattedValue
Exchange = Callable[[str], str | None]  # from a message to what stands in its place; None: nothing


def field_text(field: Field) -> str:
    """A field of an f-string in its braces, as Python writes it."""
    conversion = f"!{chr(field.conversion)}" if field.conversion != -1 else ""
    spec = f":{_joined(field.format_spec)}" if isinstance(field.format_spec, ast.JoinedStr) else ""
    return f"{{{ast.unparse(field.value)}{conversion}{spec}}}"


def _joined(node: ast.JoinedStr) -> str:
    return "".join(
        field_text(part) if isinstance(part, Field) else str(ast.literal_eval(part))
        for part in node.values
    )


def fields_of(node: ast.AST) -> dict[str, Field]:
    """Fields of an f-string by their texts; none of a plain string."""
    if not isinstance(node, ast.JoinedStr):
        return {}
    return {field_text(part): part for part in node.values if isinstance(part, Field)}


def message_of(node: ast.AST) -> str | None:
    """The message of a string or an f-string; None of all other nodes."""
    if isinstance(node, ast.JoinedStr):
        return _joined(node)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None


def has_words(node: ast.AST, least: int = 2) -> bool:
    """True for a string that has words outside its expressions."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    said = " ".join(
        part.value
        for part in parts
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    )
    return len(_WORD.findall(said)) >= least


def docstrings(tree: ast.AST) -> set[int]:
    """Ids of the nodes that are docstrings."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                found.add(id(first.value))
    return found


def strings(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the strings and f-strings of a tree that are no docstrings, parts of none of them."""
    skipped = docstrings(tree)

    def walk(node: ast.AST) -> Iterator[ast.AST]:
        if id(node) not in skipped and message_of(node) is not None:
            yield node
            return
        for child in ast.iter_child_nodes(node):
            yield from walk(child)

    yield from walk(tree)


def split(message: str, text: str, fields: dict[str, Field]) -> list[str]:
    """The translation of a template as pieces of text and fields in turn.

    Raises:
        ValueError: if an expression of it is none of the message's fields.
    """
    if not fields:
        return [text]
    known = "|".join(re.escape(each) for each in sorted(fields, key=len, reverse=True))
    pieces = re.split(f"({known})", text)
    if _num_braces(pieces) > _num_braces(re.split(f"({known})", message)):
        raise ValueError(
            f"the translation {text!r} has braces that are none of {', '.join(fields)}"
        )
    return pieces


def _num_braces(pieces: list[str]) -> int:
    """Braces outside of the fields, which are every second piece."""
    return sum(piece.count("{") + piece.count("}") for piece in pieces[::2])


class Exchanged(ast.NodeTransformer):
    """Exchanges the messages of a tree. Expressions in f-strings keep their nodes.

    Args:
        tree: its docstrings stay.
        exchange: gives the text that stands in a message's place.
    """

    def __init__(self, tree: ast.AST, exchange: Exchange):
        self._skipped = docstrings(tree)
        self._exchange = exchange

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str) and id(node) not in self._skipped and has_words(node):
            text = self._exchange(node.value)
            if text is not None:
                return ast.copy_location(ast.Constant(text), node)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        fields = fields_of(node)
        message = _joined(node)
        text = self._exchange(message) if has_words(node, 1) else None
        for field in fields.values():  # what is said inside an expression
            field.value = self.visit(field.value)
        if text is None:
            return node
        pieces = split(message, text, fields)
        values: list[ast.expr] = [
            fields[piece] if i % 2 else ast.Constant(piece)
            for i, piece in enumerate(pieces)
            if piece
        ]
        return ast.fix_missing_locations(ast.copy_location(ast.JoinedStr(values), node))
