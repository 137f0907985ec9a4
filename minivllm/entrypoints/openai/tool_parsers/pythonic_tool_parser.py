"""The form of Llama 3.2's small models and of ToolACE: a Python list of calls.

[get_weather(city="Paris", metric=True), get_time()]
"""

from __future__ import annotations

import ast
import json

from minivllm.entrypoints.openai.tool_parsers.abstract_tool_parser import (
    ParsedCall,
    ToolParser,
    ToolParserManager,
)

_MAX_TRIES = 256  # brackets that may close the list; each costs a look at all before it
_JSON_NAMES = {"true": True, "false": False, "null": None}  # some models mix the languages


@ToolParserManager.register_module("pythonic")
class PythonicToolParser(ToolParser):
    """A text that begins with such a list. It is parsed as Python, and never run."""

    closers = "]"

    def __init__(self):
        super().__init__()
        self.tries = 0

    def find(self, text: str) -> tuple[int, bool]:
        begin = text.lstrip()
        if self.said_something or self.num_calls:
            return len(text), False
        if begin.startswith("["):
            return 0, True
        return (len(text), False) if begin else (0, False)

    def read(self, text: str, finished: bool) -> tuple[list[ParsedCall], int] | None:
        close = text.find("]", self.looked_until)
        while close >= 0:
            self.tries += 1
            if self.tries > _MAX_TRIES:
                return [], len(text)
            try:
                tree = ast.parse(text[: close + 1].lstrip(), mode="eval").body
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                self.looked_until = close + 1
                close = text.find("]", close + 1)  # of an inner list, or in a string
                continue
            try:
                return [_call_of(node) for node in tree.elts], close + 1
            except (ValueError, AttributeError, RecursionError):
                return [], len(text)
        return None


def _call_of(node: ast.AST) -> ParsedCall:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("a call with named arguments is wanted")
    arguments = {word.arg: _literal(word.value) for word in node.keywords}
    if None in arguments:
        raise ValueError("** is no argument")
    return ParsedCall(ast.unparse(node.func), json.dumps(arguments, ensure_ascii=False))


def _literal(node: ast.AST):
    if isinstance(node, ast.Name) and node.id in _JSON_NAMES:
        return _JSON_NAMES[node.id]
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_literal(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {_literal(key): _literal(value) for key, value in pairs}
    return ast.literal_eval(node)
