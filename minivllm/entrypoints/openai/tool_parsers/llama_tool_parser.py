"""The form of Llama 3.1 and 3.2: nothing but JSON objects, one behind the other.

{"name": "get_weather", "parameters": {"location": "Paris"}}; {"name": ...}
"""

from __future__ import annotations

from minivllm.entrypoints.openai.tool_parsers.abstract_tool_parser import (
    ParsedCall,
    ToolParser,
    ToolParserManager,
)
from minivllm.entrypoints.openai.tool_parsers.call_form import CallForm
from minivllm.entrypoints.openai.tool_parsers.json_calls import NotYet, read_call

_PYTHON_TAG = "<|python_tag|>"  # some put it first


@ToolParserManager.register_module("llama3_json")
class Llama3JsonToolParser(ToolParser):
    """A text that begins with a call; whoever says something else first, calls nothing."""

    closers = "}"
    form = CallForm(before='{"name": %s, "parameters": ', after="}", separator="; ")
    between = " \t\r\n;"

    def find(self, text: str) -> tuple[int, bool]:
        begin = text.lstrip(self._skipped)
        if self.said_something:
            return len(text), False
        if begin.startswith(("{", _PYTHON_TAG)):
            return 0, True
        return (0, False) if _PYTHON_TAG.startswith(begin) else (len(text), False)

    def read(self, text: str, finished: bool) -> tuple[list[ParsedCall], int] | None:
        begin = text.lstrip(self._skipped).removeprefix(_PYTHON_TAG).lstrip()
        try:
            call, end = read_call(text, len(text) - len(begin), ("arguments", "parameters"))
        except NotYet:
            return None
        except ValueError:
            return [], len(text)
        return [call], end

    @property
    def _skipped(self) -> str | None:
        return self.between if self.num_calls else None
