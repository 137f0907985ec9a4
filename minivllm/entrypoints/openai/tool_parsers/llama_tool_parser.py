"""Llama3JsonToolParser: a sequence of JSON objects, the syntax of Llama 3.1 and 3.2.

{"name": "get_weather", "parameters": {"location": "Paris"}}; {"name": ...}
"""

from __future__ import annotations

import re
from collections.abc import Generator

from minivllm.entrypoints.openai.tool_parsers.abstract_tool_parser import (
    ToolParser,
    ToolParserManager,
)
from minivllm.entrypoints.openai.tool_parsers.call_form import CallForm
from minivllm.entrypoints.openai.tool_parsers.json_calls import read_call
from minivllm.entrypoints.openai.tool_parsers.text_reader import TextReader

_PYTHON_TAG = "<|python_tag|>"  # some models write it first
_BETWEEN = re.compile(r"[ \t\r\n;]*")


@ToolParserManager.register_module("llama3_json")
class Llama3JsonToolParser(ToolParser):
    """Calls at the beginning of a text. A text that begins otherwise has none."""

    form = CallForm(before='{"name": %s, "parameters": ', after="}", separator="; ")
    between = " \t\r\n;"

    def find(self, text: str) -> tuple[int, bool]:
        begin = text.lstrip(self.between if self.whole else " \t\r\n")
        if self.said_something:
            return len(text), False
        if begin.startswith(("{", _PYTHON_TAG)):
            return 0, True
        return (0, False) if _PYTHON_TAG.startswith(begin) else (len(text), False)

    def read(self, text: TextReader) -> Generator[None, None, None]:
        if (yield from text.skip(_BETWEEN)) == "<":
            yield from text.expect(_PYTHON_TAG)
            yield from text.skip()
        yield from read_call(self, text, ("arguments", "parameters"))
        self.end_call()
