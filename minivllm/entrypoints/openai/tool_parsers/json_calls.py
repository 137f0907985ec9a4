"""Parser of a call that is a JSON object: its name, and the unchanged text of its arguments.

A stack of the open brackets is the only state that JSON needs, beside the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from typing import TYPE_CHECKING

from minivllm.entrypoints.openai.tool_parsers.text_reader import NotACall, TextReader

if TYPE_CHECKING:
    from minivllm.entrypoints.openai.tool_parsers.abstract_tool_parser import ToolParser

Reading = Generator[None, None, None]

_MAX_DEPTH = 200  # Python's own parser gives up at about a thousand
_CLOSER = {"{": "}", "[": "]"}
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_ESCAPE = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})')
_WORD = re.compile(r"[-+.0-9a-zA-Z]*")
_SCALAR = re.compile(r"true|false|null|-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")


def read_call(parser: ToolParser, text: TextReader, keys: tuple[str, ...]) -> Reading:
    """Read an object with a name and arguments, and report both to the parser.

    Args:
        parser: gets the name, and the arguments as they come.
        text: at the beginning of the object.
        keys: possible keys of the arguments.

    Raises:
        NotACall: if it is no JSON object, or a part has the wrong type. ``end_call`` checks that
            none is missing.
    """
    seen: set[str] = set()
    yield from text.expect("{")
    while True:
        yield from text.skip()
        key = yield from read_string(text)
        key = "arguments" if key in keys else key
        if key in seen:
            raise NotACall(f"{key!r} comes twice")
        seen.add(key)
        yield from text.skip()
        yield from text.expect(":")
        yield from text.skip()
        if key == "name":
            parser.name_call((yield from read_string(text)))
        elif key == "arguments":
            yield from read_arguments(parser, text)
        else:
            yield from read_value(text)
        if (yield from text.skip()) != ",":
            break
        text.at += 1
    yield from text.expect("}")


def read_arguments(parser: ToolParser, text: TextReader) -> Reading:
    """Read an object of arguments; the parser gets it as it comes."""
    if (yield from text.skip()) != "{":
        raise NotACall("arguments must be an object")
    yield from parser.stream_arguments(read_value(text))


def read_calls(parser: ToolParser, text: TextReader, read_one) -> Reading:
    """Read a list of calls. Each is complete when a comma or the list's end follows it."""
    yield from text.expect("[")
    while True:
        yield from text.skip()
        yield from read_one()
        mark = yield from text.skip()
        if mark not in (",", "]"):
            raise NotACall("a comma must come, or the end of the list")
        text.at += 1
        parser.end_call()
        if mark == "]":
            return


def read_value(text: TextReader) -> Reading:
    """Read any JSON value."""
    closers: list[str] = []  # of open objects and lists, innermost last
    while True:
        char = yield from text.skip()
        just_opened = char in _CLOSER
        if just_opened:
            text.at += 1
            closers.append(_CLOSER[char])
            if len(closers) > _MAX_DEPTH:
                raise NotACall("it is nested too deeply")
        elif char == '"':
            yield from read_string(text)
        elif not _SCALAR.fullmatch((yield from text.run_of(_WORD))):
            raise NotACall("a value must come")
        while closers and (yield from text.skip()) == closers[-1]:
            text.at += 1
            closers.pop()
            just_opened = False
        if not closers:
            return
        if not just_opened:
            yield from text.expect(",")
            yield from text.skip()
        if closers[-1] == "}":
            yield from read_string(text)
            yield from text.skip()
            yield from text.expect(":")


def read_string(text: TextReader) -> Generator[None, None, str]:
    """Read a JSON string. Returns its value."""
    begin = text.at
    yield from text.expect('"')
    while True:
        yield from text.run_of(_PLAIN)
        if (yield from text.peek()) != "\\":
            break
        if (yield from text.peek(2)) == "\\u":
            yield from text.peek(6)
        escape = _ESCAPE.match(text.text, text.at)
        if escape is None:
            raise NotACall("a backslash must escape something")
        text.at = escape.end()  # at once, so that half an escape is never streamed
    yield from text.expect('"')
    return json.loads(text.text[begin : text.at])
