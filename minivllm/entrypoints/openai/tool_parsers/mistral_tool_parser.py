"""The forms of Mistral's models: a special token, and a list or (newer ones) a name and an object.

[TOOL_CALLS][{"name": "get_weather", "arguments": {"location": "Paris"}}]
[TOOL_CALLS]get_weather{"location": "Paris"}
"""

from __future__ import annotations

import random
import re
import string

from minivllm.entrypoints.openai.tool_parsers.abstract_tool_parser import (
    ParsedCall,
    ToolParser,
    ToolParserManager,
    partial_suffix,
)
from minivllm.entrypoints.openai.tool_parsers.call_form import CallForm
from minivllm.entrypoints.openai.tool_parsers.json_calls import NotYet, read_call, read_object

OPENING = "[TOOL_CALLS]"
_NAME = re.compile(r"\s*([\w.-]+)\s*(?:\[ARGS\]\s*)?(?=\{)")
_BEGINNING_OF_A_NAME = re.compile(r"\s*[\w.-]*\s*(\[(A(R(G(S\]?)?)?)?)?)?\s*")
_GAP = re.compile(r"\s*,?\s*")


@ToolParserManager.register_module("mistral")
class MistralToolParser(ToolParser):
    """Either form, behind the token that opens it."""

    closers = "]}"
    form = CallForm(
        trigger=OPENING,
        opening="[",
        before='{"name": %s, "arguments": ',
        after="}",
        separator=", ",
        closing="]",
    )

    @staticmethod
    def make_id() -> str:
        """Mistral's templates take nine letters and digits, nothing else."""
        return "".join(random.choices(string.ascii_letters + string.digits, k=9))

    def find(self, text: str) -> tuple[int, bool]:
        at = text.find(OPENING)
        return (at, True) if at >= 0 else (len(text) - partial_suffix(text, OPENING), False)

    def read(self, text: str, finished: bool) -> tuple[list[ParsedCall], int] | None:
        at = len(text) - len(text[len(OPENING) :].lstrip())
        try:
            if text.startswith("[", at):
                return self._read_list(text, at + 1)
            name = _NAME.match(text, at)
            if name is None:
                if _BEGINNING_OF_A_NAME.fullmatch(text, at):
                    return None
                raise ValueError("a name must come")
            _, end = read_object(text, name.end())
            return [ParsedCall(name[1], text[name.end() : end], name.end())], end
        except NotYet:
            return None
        except ValueError:
            return [], len(OPENING)  # what follows may open another

    @staticmethod
    def _read_list(text: str, at: int) -> tuple[list[ParsedCall], int]:
        calls = []
        while True:
            at = _GAP.match(text, at).end() if calls else len(text) - len(text[at:].lstrip())
            if text.startswith("]", at):
                return calls, at + 1
            if at == len(text):
                raise NotYet("an object or the end of the list")
            call, at = read_call(text, at, ("arguments",))
            calls.append(call)
