"""MistralToolParser: a special token, then a list or (newer models) a name and an object.

[TOOL_CALLS][{"name": "get_weather", "arguments": {"location": "Paris"}}]
[TOOL_CALLS]get_weather{"location": "Paris"}
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Generator

from minivllm.entrypoints.openai.tool_parsers.abstract_tool_parser import (
    ToolParser,
    ToolParserManager,
)
from minivllm.entrypoints.openai.tool_parsers.call_form import CallForm
from minivllm.entrypoints.openai.tool_parsers.json_calls import (
    read_arguments,
    read_call,
    read_calls,
)
from minivllm.entrypoints.openai.tool_parsers.text_reader import TextReader

OPENING = "[TOOL_CALLS]"
_NAME = re.compile(r"[\w.-]*")


@ToolParserManager.register_module("mistral")
class MistralToolParser(ToolParser):
    """Calls in either syntax, after the opening token."""

    opening = OPENING
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
        """Make an id of nine letters and digits: Mistral's templates refuse others."""
        return "".join(random.choices(string.ascii_letters + string.digits, k=9))

    def read(self, text: TextReader) -> Generator[None, None, None]:
        yield from text.expect(OPENING)
        if (yield from text.skip()) == "[":
            yield from read_calls(self, text, lambda: read_call(self, text, ("arguments",)))
            return
        self.name_call((yield from text.run_of(_NAME)))
        if (yield from text.skip()) == "[":
            yield from text.expect("[ARGS]")
        yield from read_arguments(self, text)
        self.end_call()
