"""A call that is written as a JSON object: its name, and its arguments just as they stand there."""

from __future__ import annotations

import json
import re

from minivllm.entrypoints.openai.tool_parsers.abstract_tool_parser import ParsedCall

_decode = json.JSONDecoder().raw_decode
_SPACE = re.compile(r"\s*")


class NotYet(ValueError):
    """What is there so far could be the beginning of it."""


def read_call(text: str, start: int, arguments: tuple[str, ...]) -> tuple[ParsedCall, int]:
    """The call that begins with a brace at ``start``, and where it ends.

    Args:
        text: more may follow behind the call.
        start: where the object begins.
        arguments: the keys that the arguments may have, the first that is there counts.

    Raises:
        NotYet: if the object does not end.
        ValueError: if it is no JSON, or no call.
    """
    members, end = read_object(text, start)
    name = members.get("name", (None, 0, 0))[0]
    key = next((key for key in arguments if key in members), None)
    if not isinstance(name, str) or not name or key is None:
        raise ValueError(f"a call needs 'name' and {' or '.join(map(repr, arguments))}")
    value, begin, behind = members[key]
    if not isinstance(value, dict):
        raise ValueError(f"{key!r} must be an object")
    return ParsedCall(name, text[begin:behind], begin), end


def read_object(text: str, start: int) -> tuple[dict[str, tuple], int]:
    """The members of a JSON object, each with its value and where that stands; and the end.

    Raises:
        NotYet, ValueError: see ``read_call``.
    """
    members: dict[str, tuple] = {}
    at = _expect(text, start, "{")
    if text[at : at + 1] == "}":
        return members, at + 1
    while True:
        if text[at : at + 1] not in ('"', ""):
            raise ValueError("a key must be a string")
        key, at = _value(text, at)
        begin = _expect(text, _skip(text, at), ":")
        value, behind = _value(text, begin)
        members[key] = (value, begin, behind)
        at = _skip(text, behind)
        if text[at : at + 1] == "}":
            return members, at + 1
        at = _expect(text, at, ",")


def _skip(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()


def _expect(text: str, at: int, char: str) -> int:
    """Where the next thing begins behind this character."""
    if at == len(text):
        raise NotYet(f"{char!r} is to come")
    if text[at] != char:
        raise ValueError(f"{char!r} must come at {at}, not {text[at]!r}")
    return _skip(text, at + 1)


def _value(text: str, at: int) -> tuple[object, int]:
    try:
        return _decode(text, at)
    except json.JSONDecodeError as error:
        # near the end it may be half a word or half an escape
        if error.msg.startswith("Unterminated") or len(text) - error.pos < 10:
            raise NotYet(str(error)) from error
        raise
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
