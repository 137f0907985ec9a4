"""PythonicToolParser: a Python list of calls, the syntax of small Llama 3.2 models and ToolACE.

[get_weather(city="Paris", metric=True), get_time()]
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Generator
from typing import Any

from minivllm.entrypoints.openai.tool_parsers.abstract_tool_parser import (
    ToolParser,
    ToolParserManager,
)
from minivllm.entrypoints.openai.tool_parsers.json_calls import read_calls
from minivllm.entrypoints.openai.tool_parsers.text_reader import NotACall, TextReader
from minivllm.logger import without_warnings
from minivllm.utils.validation import is_text

_SPACE = re.compile(r"\s*")
_NAME = re.compile(r"[\w.]*")
_PLAIN = re.compile(r"""[^\[\](){},'"]*""")
_CLOSER = {"{": "}", "[": "]", "(": ")"}
_JSON_NAMES = {"true": True, "false": False, "null": None}  # some models mix the languages


@ToolParserManager.register_module("pythonic")
class PythonicToolParser(ToolParser):
    """Calls in a list at the beginning of a text. It is parsed as Python, and never executed.

    Arguments are translated into JSON, so each is emitted when it is complete.
    """

    def find(self, text: str) -> tuple[int, bool]:
        begin = text.lstrip()
        if self.said_something or self.num_calls:
            return len(text), False
        if begin.startswith("["):
            return 0, True
        return (len(text), False) if begin else (0, False)

    def read(self, text: TextReader) -> Generator[None, None, None]:
        yield from text.skip(_SPACE)
        yield from read_calls(self, text, lambda: self._read_call(text))

    def _read_call(self, text: TextReader) -> Generator[None, None, None]:
        name = yield from text.run_of(_NAME)
        if not all(part.isidentifier() for part in name.split(".")):
            raise NotACall("a function's name must come")
        self.name_call(name)
        yield from text.skip()
        yield from text.expect("(")
        words: set[str] = set()
        while (yield from text.skip()) != ")":
            if words:
                yield from text.expect(",")
                yield from text.skip()
            word = yield from text.run_of(_NAME)
            if not word.isidentifier() or word in words:
                raise NotACall("an argument's name must come")
            yield from text.skip()
            yield from text.expect("=")
            value = _as_json((yield from _read_expression(text)))
            self.add_arguments(f'{", " if words else "{"}"{word}": {value}')
            words.add(word)
        text.at += 1
        self.add_arguments("}" if words else "{}", last=True)


def _read_expression(text: TextReader) -> Generator[None, None, str]:
    """Read up to the comma or the parenthesis that ends an argument."""
    begin = text.at
    closers: list[str] = []
    while True:
        yield from text.run_of(_PLAIN)
        char = yield from text.peek()
        if not closers and char in (",", ")"):
            return text.text[begin : text.at]
        if char in ("'", '"'):
            yield from _read_string(text)
            continue
        if char in _CLOSER:
            closers.append(_CLOSER[char])
        elif char != "," and (not closers or char != closers.pop()):
            raise NotACall("brackets must match")
        text.at += 1


def _read_string(text: TextReader) -> Generator[None, None, None]:
    quote = yield from text.peek(3)
    if quote not in ("'''", '"""'):
        quote = quote[0]
    text.at += len(quote)
    while (ahead := (yield from text.peek(len(quote)))) != quote:
        if not ahead:
            raise NotACall("a string must end")
        text.at += len((yield from text.peek(2))) if ahead[0] == "\\" else 1
    text.at += len(quote)


def _as_json(source: str) -> str:
    """Translate a Python literal into JSON."""
    try:
        with without_warnings():
            tree = ast.parse(source.strip(), mode="eval")
        value = _literal(tree.body)
        found = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise NotACall("an argument must be a literal") from error
    if not is_text(found):
        raise NotACall("half a character")
    return found


def _literal(node: Any) -> Any:
    if isinstance(node, ast.Name) and node.id in _JSON_NAMES:
        return _JSON_NAMES[node.id]
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_literal(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {_literal(key): _literal(value) for key, value in pairs}
    return ast.literal_eval(node)
