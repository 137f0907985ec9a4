"""A call that is written as a JSON object: its name, and its arguments just as they stand there.

A stack is all that JSON needs beyond single characters: what is open, innermost last.
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
    """Read an object with a name and arguments, and tell the parser of both.

    Args:
        parser: gets the name, and the arguments as they come.
        text: an object begins here.
        keys: what the arguments may be called.

    Raises:
        NotACall: if it is no JSON object, or a part is of the wrong kind. That none is missing,
            ``end_call`` looks.
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
    """Read an object, which the parser gets as it comes."""
    if (yield from text.skip()) != "{":
        raise NotACall("arguments must be an object")
    yield from parser.stream_arguments(read_value(text))


def read_calls(parser: ToolParser, text: TextReader, read_one) -> Reading:
    """Read a list of calls, each whole as soon as a comma or the list's end follows it."""
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
    closers: list[str] = []  # of the objects and lists that are open, innermost last
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
    """Read a JSON string. Returns what it means."""
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
        text.at = escape.end()  # all of it at once: nobody is shown half an escape
    yield from text.expect('"')
    return json.loads(text.text[begin : text.at])
