"""Lab of notebook 16: a tool parser, held to all that is sure after each piece."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from random import Random
from typing import Any

from minivllm.course.grading.function_lab import FunctionLab
from minivllm.course.grading.run import Fault, describe_error


def my_tool_stream(pieces):
    """Read calls out of a text that comes in pieces: a generator.

    Args:
        pieces: an iterator of strings, the text in its order.

    Yields: for each piece a list of what is sure now, in order, and one more list when the text has
    ended. In it are pairs: ("content", words), ("name", name) and ("arguments", words).

    A call is <tool_call>{"name": "f", "arguments": {...}}</tool_call>, with no other blanks but
    inside the arguments, which are any JSON object. All other text is content.

    Content is given out at once; only an end that may become <tool_call> waits. A call's name is
    given out as soon as the brace of its arguments is there, and from that brace on the arguments
    as they come (half an escape may wait). Their last brace waits until </tool_call> is there, all
    of it. If the text ends before that, the last list gives out the call's text, from its
    <tool_call> on, as content.
    """
    raise NotImplementedError


def tool_stream(pieces):
    opening, before, closing = "<tool_call>", '{"name": "', "}</tool_call>"
    text, given, name = "", 0, None  # what is not used up; how many of its arguments are out

    def end_of_object(text, at):
        """End of the object that begins here, or None."""
        depth, in_string, escaped = 0, False, False
        for i in range(at, len(text)):
            char = text[i]
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = in_string
            elif char == '"':
                in_string = not in_string
            elif not in_string:
                depth += (char == "{") - (char == "}")
                if depth == 0:
                    return i + 1
        return None

    for piece in pieces:
        text, out = text + piece, []
        while True:
            start = text.find(opening)
            if start != 0:
                held = range(len(opening) - 1, 0, -1)
                keep = next((n for n in held if text.endswith(opening[:n])), 0)
                content = text[:start] if start > 0 else text[: len(text) - keep]
                out += [("content", content)] * bool(content)
                text = text[len(content) :]
                if start < 0:
                    break
            quote = text.find('", "arguments": {')
            if quote < 0:
                break
            begin = quote + len('", "arguments": ')
            if name is None:
                name = text[len(opening + before) : quote]
                out.append(("name", name))
            end = end_of_object(text, begin)
            whole = end is not None and text.startswith(closing, end)
            sure = end if whole else len(text) if end is None else end - 1
            if sure > begin + given:
                out.append(("arguments", text[begin + given : sure]))
                given = sure - begin
            if not whole:
                break
            text, given, name = text[end + len(closing) :], 0, None
        yield out
    yield [("content", text)] if text else []


_CALL = '<tool_call>{{"name": "{}", "arguments": {}}}</tool_call>'
_F = _CALL.format("f", '{"city": "Rome"}')
TEXTS = {
    "content alone": "Hello! 5 < 6, and <b>bold</b>.",
    "a call": _F,
    "a call without arguments": _CALL.format("now", "{}"),
    "content and a call": "Let me see. " + _F,
    "nested arguments": _CALL.format("f", '{"a": {"b": [1, {"c": 2}]}, "d": {}}'),
    "braces and quotes in a string": _CALL.format("f", '{"a": "} {\\"", "b": "\\\\"}'),
    "a tag in a string": _CALL.format("f", '{"a": "</tool_call>"}'),
    "two calls": _F + _CALL.format("g", '{"x": 1}'),
    "a call and content": _F + "Done.",
    "a call that is cut": 'Well <tool_call>{"name": "f", "arguments": {"city": "Ro',
    "a call that is cut behind its arguments": '<tool_call>{"name": "f", "arguments": {"a": 1}',
    "a call that is cut in its closing tag": _F[:-3],
    "a call that is cut in its name": '<tool_call>{"name": "ge',
    "a tag that is cut": "Well <tool",
    "no text": "",
}


_HALF_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\(u[0-9a-fA-F]{0,3})?$")

Given = list[list[tuple[str, str]]]


def check_tool_stream(function: Callable, seed: int) -> str:
    """Raises ``Fault`` for the first text and cut at which something else comes out."""
    streams = 0
    for name, text in TEXTS.items():
        for pieces in cuts_of(text, seed):
            _compare(f"{name}, pieces {_short(pieces)}", pieces, _run(function, pieces))
            streams += 1
    return f"all that is sure after each piece, and nothing else, in {streams} streams"


def cuts_of(text: str, seed: int) -> Iterator[list[str]]:
    """The text at once, in two at every place, by character, and cut at random."""
    yield [text]
    yield list(text)
    for i in range(1, len(text)):
        yield [text[:i], text[i:]]
    rng = Random(f"{text} {seed}")
    for _ in range(20):
        cuts = sorted({0, len(text), *(rng.randint(0, len(text)) for _ in range(5))})
        yield [text[a:b] for a, b in pairwise(cuts)]


def _run(function: Callable, pieces: list[str]) -> Given:
    """Lists that the reader's generator yields, checked for their shape."""
    given: Given = []
    try:
        for out in function(iter(pieces)):
            if not isinstance(out, (list, tuple)) or not all(map(_is_pair, out)):
                raise Fault(f"yield lists of pairs like ('content', 'Hi'), not {out!r:.80}")
            given.append([tuple(pair) for pair in out])
            if len(given) > len(pieces) + 1:
                break
    except (Fault, NotImplementedError):
        raise
    except Exception as error:  # there is no end to what a function may do
        raise Fault(f"pieces {_short(pieces)}: {describe_error(error)}") from error
    if len(given) != len(pieces) + 1:
        raise Fault(
            f"pieces {_short(pieces)}: yield one list a piece, and one at the end: "
            f"{len(pieces) + 1} lists, not {len(given)}"
        )
    return given


def _is_pair(pair: Any) -> bool:
    ok = isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(x, str) for x in pair)
    return ok and pair[0] in ("content", "name", "arguments")


def _compare(where: str, pieces: list[str], given: Given) -> None:
    """After each piece neither less nor more may be out than the solution gives out."""
    mine = Message()
    right = Message()
    solution = tool_stream(iter(pieces))
    for number, (out, theirs) in enumerate(zip(given, solution, strict=True), 1):
        mine.add(out)
        right.add(theirs)
        if mine.sure == right.sure:
            continue
        at = "at the end" if number > len(pieces) else f"with piece {number}"
        if mine.calls_that_parse() > right.calls_that_parse():
            raise Fault(f"{where}: {at} arguments are JSON of a call that is not whole yet")
        if right.begins_with(mine):
            missing = right.parts[len(mine.parts) - 1 :] if mine.parts else right.parts
            raise Fault(f"{where}: {at} more is sure than you give out: {missing!r:.120}")
        raise Fault(f"{where}: {at} {mine.parts[-1:]!r:.80} is given out, {right.parts[-1:]!r:.80}"
                    " is sure")  # fmt: skip


class Message:
    """Parts that have been given out, with neighbours of a kind joined."""

    def __init__(self):
        self.parts: list[tuple[str, str]] = []

    @property
    def sure(self) -> list[tuple[str, str]]:
        """The same without half an escape at the end: that may wait, or not."""
        if not self.parts:
            return []
        *before, (kind, words) = self.parts
        return [*before, (kind, _HALF_ESCAPE.sub(r"\1", words))]

    def add(self, pairs: Iterable[tuple[str, str]]) -> None:
        for kind, words in pairs:
            if self.parts and kind == self.parts[-1][0] != "name":
                words = self.parts.pop()[1] + words
            if words:
                self.parts.append((kind, words))

    def begins_with(self, other: Message) -> bool:
        """True if the other one has a part of this, and nothing else."""
        if not other.parts:
            return True
        *before, (kind, words) = other.parts
        after = self.parts[len(before) :]
        if self.parts[: len(before)] != before or not after:
            return False
        return after[0][0] == kind and after[0][1].startswith(words)

    def calls_that_parse(self) -> int:
        return sum(kind == "arguments" and _is_json(words) for kind, words in self.parts)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _short(pieces: list[str]) -> str:
    shown = repr(pieces)
    return shown if len(shown) < 160 else f"{shown[:160]}..."


LAB = FunctionLab(
    "16",
    "Write a tool parser that is fed piece by piece.",
    "Keep what is not used up in one string; look again at all of it when a piece has come.",
    difficulty=4, minutes=40, stub=my_tool_stream, check=check_tool_stream,
)  # fmt: skip
