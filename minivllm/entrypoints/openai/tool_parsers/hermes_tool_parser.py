"""HermesToolParser: JSON between tags, the syntax of Hermes 2 Pro, Qwen, and the embedded model.

<tool_call>
{"name": "get_weather", "arguments": {"location": "Paris"}}
</tool_call>

(notebook 16)
"""

from __future__ import annotations

from collections.abc import Generator

from minivllm.entrypoints.openai.tool_parsers.abstract_tool_parser import (
    ToolParser,
    ToolParserManager,
)
from minivllm.entrypoints.openai.tool_parsers.call_form import CallForm
from minivllm.entrypoints.openai.tool_parsers.json_calls import read_call
from minivllm.entrypoints.openai.tool_parsers.text_reader import TextReader

OPENING = "<tool_call>"
CLOSING = "</tool_call>"


@ToolParserManager.register_module("hermes", "qwen3_json")
class HermesToolParser(ToolParser):
    """Calls, each between its own tags; the last closing tag may be missing."""

    opening = OPENING
    form = CallForm(
        trigger=OPENING,
        before=OPENING + '\n{"name": %s, "arguments": ',
        after="}\n" + CLOSING,
        separator="\n",
    )

    def read(self, text: TextReader) -> Generator[None, None, None]:
        yield from text.expect(OPENING)
        yield from text.skip()
        yield from read_call(self, text, ("arguments",))
        if (yield from text.skip()):  # else the text has ended
            yield from text.expect(CLOSING)
        self.end_call()
