"""The form of Hermes 2 Pro, Qwen, and the embedded model: JSON between tags.

<tool_call>
{"name": "get_weather", "arguments": {"location": "Paris"}}
</tool_call>
"""

from __future__ import annotations

from minivllm.entrypoints.openai.tool_parsers.abstract_tool_parser import (
    ParsedCall,
    ToolParser,
    ToolParserManager,
    partial_suffix,
)
from minivllm.entrypoints.openai.tool_parsers.call_form import CallForm
from minivllm.entrypoints.openai.tool_parsers.json_calls import NotYet, read_call

OPENING, CLOSING = "<tool_call>", "</tool_call>"


@ToolParserManager.register_module("hermes", "qwen3_json")
class HermesToolParser(ToolParser):
    """Each call between tags of its own; the last may lack its closing one."""

    closers = ">"
    form = CallForm(
        trigger=OPENING,
        before=OPENING + '\n{"name": %s, "arguments": ',
        after="}\n" + CLOSING,
        separator="\n",
    )

    def find(self, text: str) -> tuple[int, bool]:
        at = text.find(OPENING)
        return (at, True) if at >= 0 else (len(text) - partial_suffix(text, OPENING), False)

    def read(self, text: str, finished: bool) -> tuple[list[ParsedCall], int] | None:
        close = text.find(CLOSING, self.looked_until)
        while close >= 0:
            try:
                return [_read(text, close)], close + len(CLOSING)
            except NotYet:  # perhaps this tag stands inside a string
                self.looked_until = close + 1
                close = text.find(CLOSING, close + 1)
            except ValueError:
                return [], close + len(CLOSING)
        if finished:
            try:
                return [_read(text, len(text))], len(text)
            except ValueError:
                return [], len(text)
        return None


def _read(text: str, close: int) -> ParsedCall:
    body = text[:close].rstrip()
    start = len(OPENING) + len(text[len(OPENING) :]) - len(text[len(OPENING) :].lstrip())
    call, end = read_call(body, start, ("arguments",))
    if end != len(body):
        raise ValueError("nothing may stand behind the object")
    return call
