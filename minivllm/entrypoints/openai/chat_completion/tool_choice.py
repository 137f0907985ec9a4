"""ToolChoice: the tools of a chat, the grammar of calls, and their parser.

(vLLM: vllm/entrypoints/openai/chat_completion/serving.py, vllm/parser/abstract_parser.py)
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from minivllm.config.structured_outputs import StructuredOutputsParams, check_schema
from minivllm.entrypoints.openai.errors import RequestError
from minivllm.entrypoints.openai.tool_parsers import ToolParser, ToolParserManager
from minivllm.entrypoints.openai.tool_parsers.abstract_tool_parser import DeltaToolCall, ToolCall
from minivllm.sampling_params import SamplingParams

STRICT_LEVELS = ("auto", "function", "parameter")


def check_tool_choice(tools: Any, choice: Any) -> None:
    """Raise ``RequestError`` unless this choice is among these tools, both as in the body."""
    if tools == []:
        raise RequestError("tools must hold at least one tool, or be left out", "tools")
    if choice in (None, "none"):
        return
    if tools is None:
        raise RequestError("tool_choice needs tools", "tool_choice")
    if isinstance(choice, dict):
        form = '{"type": "function", "function": {"name": "my_function"}}'
        function = choice.get("function")
        if not isinstance(function, dict):
            raise RequestError(
                f"a tool_choice that names a tool must be {form}, got {str(choice)[:100]}",
                "tool_choice.function",
            )
        name = function.get("name")
        if not isinstance(name, str) or not name:
            raise RequestError(
                f"a tool_choice that names a tool must be {form}, got the name {name!r:.100}",
                "tool_choice.function.name",
            )
        functions = [tool.get("function") for tool in tools if isinstance(tool, dict)]
        if all(not isinstance(one, dict) or one.get("name") != name for one in functions):
            raise RequestError(f"tool_choice names {name!r}, which is none of tools", "tool_choice")
    elif choice not in ("auto", "required"):
        raise RequestError(
            f'tool_choice must name a tool or be "none", "auto" or "required", got {choice!r}',
            "tool_choice",
        )


class ToolChoice:
    """Tools and tool choice of one request, with the server's tool parser.

    Args:
        tools: of the request, checked.
        choice: "auto", "required", or an object with a tool's name.
        parallel: a message may have several calls.
        args: of the server.

    Raises:
        RequestError: if the server has no parser for this choice.
    """

    def __init__(
        self,
        tools: list[dict],
        choice: str | Mapping[str, Any] | None,
        parallel: bool,
        args: Namespace,
    ):
        self.parallel = parallel
        self.functions = [tool["function"] for tool in tools]
        if choice is not None and not isinstance(choice, str):
            self.choice = "named"
            name = choice["function"]["name"]
            self.functions = [next(f for f in self.functions if f["name"] == name)]
        else:
            self.choice = choice or "auto"
        self.level = args.tool_strict_level
        if self.choice == "auto" and not (args.enable_auto_tool_choice and args.tool_call_parser):
            raise RequestError(
                '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to '
                "be set"
            )
        if not args.tool_call_parser:
            shown = "required" if self.choice == "required" else "a name"
            raise RequestError(f"tool_choice={shown!r} requires --tool-call-parser to be set")
        self.parser_class = ToolParserManager.get_tool_parser(args.tool_call_parser)
        if self.forced and self.parser_class.form is None:
            raise RequestError(
                f"calls of the parser {args.tool_call_parser!r} cannot be forced; leave "
                'tool_choice at "auto"',
                "tool_choice",
            )

    @property
    def forced(self) -> bool:
        return self.choice != "auto"

    def constrain(self, params: SamplingParams, tokenizer) -> SamplingParams:
        """Add the grammar of this choice to the parameters, if it needs one.

        A choice that names a tool, or "required", forces calls. Otherwise the text is free up to
        the beginning of a call. ``--tool-strict-level function`` then allows the tools' names only;
        ``parameter``, or ``strict: true`` in a tool, also enforces the schema of its arguments.
        """
        form = self.parser_class.form
        text = "" if form is None else form.trigger + form.opening + form.before
        special = {
            token.content: i
            for i, token in tokenizer.added_tokens_decoder.items()
            if token.special and token.content in text
        }
        if special:  # the parser needs them in the text
            params = replace(params, skip_special_tokens=False)
        wanted = self.forced or self.level != "auto" or any(map(_says_strict, self.functions))
        if form is None or not wanted:
            return params
        if params.structured_outputs is not None:
            if not self.forced:
                return params  # the request's own grammar has precedence
            raise RequestError("tool_choice forces a form; leave out the other")

        def strict(tool: dict) -> bool:
            return self.level == "parameter" or _says_strict(tool)

        for tool in filter(strict, self.functions):
            check_schema("tools", tool.get("parameters") or {})
        grammar = form.grammar(
            self.functions,
            forced=self.forced,
            parallel=self.parallel and self.choice != "named",
            strict=strict,
            special_token_ids=special,
        )
        return replace(params, structured_outputs=StructuredOutputsParams(grammar=grammar))

    def message(
        self, text: str, finish_reason: str | None
    ) -> tuple[str | None, list[dict], str | None]:
        """Content, calls and finish reason of a whole answer."""
        found = self.parser_class().extract_tool_calls(text)
        calls = found.tool_calls if self.parallel else found.tool_calls[:1]
        content = found.content or ("" if self.forced else None) if calls else text
        reason = self.finish_reason(finish_reason, bool(calls))
        return content, [_shown(call) for call in calls], reason

    def finish_reason(self, finish_reason: str | None, called: bool) -> str | None:
        """Finish reason of a choice: "tool_calls" in place of "stop" if it called a tool.

        With a named tool "stop" stays, as in vLLM.
        """
        if called and finish_reason == "stop" and self.choice != "named":
            return "tool_calls"
        return finish_reason


class ToolStream:
    """Parser of one choice of a stream: turns pieces of text into deltas of a message."""

    def __init__(self, choice: ToolChoice):
        self.choice = choice
        self.parser: ToolParser = choice.parser_class()

    @property
    def called(self) -> bool:
        """True if at least one call is complete."""
        return bool(self.parser.whole)

    def deltas(self, text: str, finished: bool) -> list[dict]:
        """Deltas of the message for a piece of text."""
        found = self.parser.extract_tool_calls_streaming(text)
        if finished:
            found += self.parser.finish()
        deltas: list[dict[str, Any]] = []
        for piece in found:
            if isinstance(piece, str):
                deltas.append({"content": piece})
            elif self.choice.parallel or not self.called or piece.index <= self.parser.whole[0]:
                deltas.append({"content": None, "tool_calls": [_shown_piece(piece)]})
        return deltas


def _says_strict(function: dict[str, Any]) -> bool:
    return function.get("strict") is True


def _shown(call: ToolCall) -> dict:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _shown_piece(piece: DeltaToolCall) -> dict:
    if piece.id is None:
        return {"index": piece.index, "function": {"arguments": piece.arguments}}
    function = {"name": piece.name, "arguments": ""}
    return {"id": piece.id, "type": "function", "index": piece.index, "function": function}
