"""ToolParser: splits a text, fed piece by piece, into content and tool calls.

A call is streamed: its id and name as soon as its arguments begin, then the arguments bit by bit.
Only their last brace is held back until the whole call is well formed. So if the streamed arguments
are valid JSON, the call is valid. A text that turns out to be no call is content, unchanged.
(vLLM: vllm/tool_parsers/abstract_tool_parser.py)
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from minivllm.entrypoints.openai.tool_parsers.call_form import CallForm
from minivllm.entrypoints.openai.tool_parsers.text_reader import NotACall, TextReader
from minivllm.utils.validation import check, is_text


@dataclass(frozen=True)
class DeltaToolCall:
    """A piece of a call: first its id and name, then its arguments bit by bit."""

    index: int  # of the call in its message
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass
class ToolCall:
    """A complete call."""

    id: str
    name: str
    arguments: str = ""


@dataclass
class ExtractedToolCallInformation:
    """Content and tool calls of a whole text."""

    tool_calls: list[ToolCall] = field(default_factory=list)
    content: str | None = None  # None: calls only

    @property
    def tools_called(self) -> bool:
        return bool(self.tool_calls)


@dataclass
class _OpenCall:
    """State of the call that is being read."""

    name: str | None = None
    arguments: str = ""  # so far
    ended: bool = False  # the arguments are complete
    index: int | None = None  # None: no part has been emitted
    given: int = 0  # number of characters of the arguments that have been emitted


class ToolParser(ABC):
    """Parser of one message. A subclass has the syntax of one family of models."""

    opening = ""  # of a call; a subclass without one overrides ``find``
    form: CallForm | None = None  # syntax for the grammar; None: calls cannot be forced
    between = " \t\r\n"  # blanks after a call, which are no content

    def __init__(self):
        self.num_calls = 0  # calls of which a part has been emitted
        self.whole: list[int] = []  # indexes of complete calls
        self.said_something = False  # content has been emitted
        self._text = TextReader()
        self._call: _OpenCall | None = None  # None: content is being read
        self._gap: str | None = None  # blanks after a call, held back in case another follows
        self._found: list[str | DeltaToolCall] = []
        self._message = self._read_message()

    def extract_tool_calls(self, model_output: str) -> ExtractedToolCallInformation:
        """Parse a whole text. Returns its calls and content."""
        found = ExtractedToolCallInformation()
        calls = {}
        content = ""
        for delta in [*self.extract_tool_calls_streaming(model_output), *self.finish()]:
            if isinstance(delta, str):
                content += delta
            elif delta.id is not None and delta.name is not None:
                calls[delta.index] = ToolCall(delta.id, delta.name)
            else:
                calls[delta.index].arguments += delta.arguments
        found.tool_calls = [calls[index] for index in self.whole]
        if content or not found.tool_calls:
            found.content = content
        return found

    def extract_tool_calls_streaming(self, delta_text: str) -> list[str | DeltaToolCall]:
        """Parse a further piece of text. Returns pieces of content and of calls, in order.

        A call may turn out to be none after pieces of it were emitted. Then its arguments never
        become JSON, its index does not get into ``whole``, and its text follows as content.
        """
        self._text.text += delta_text
        return self._go_on()

    def finish(self) -> list[str | DeltaToolCall]:
        """End the text. Returns the pieces that were held back."""
        self._text.ended = True
        return self._go_on()

    @property
    def state(self) -> str:
        """State of the parser: "content", "call", or "arguments" of an open call."""
        if self._call is None:
            return "content"
        return "arguments" if self._call.arguments else "call"

    @staticmethod
    def make_id() -> str:
        """Make an id for a new call."""
        return f"chatcmpl-tool-{uuid.uuid4().hex}"

    # -- the syntax of a family ----------------------------------------------------------------

    def find(self, text: str) -> tuple[int, bool]:
        """Find the opening of a call. Returns its index, and True.

        If the end of the text may still become an opening: the index of that, and False. Else the
        text's length, and False.
        """
        at = text.find(self.opening)
        return (at, True) if at >= 0 else (len(text) - partial_suffix(text, self.opening), False)

    @abstractmethod
    def read(self, text: TextReader) -> Generator[None, None, None]:
        """Read from the opening of a call to its end. A coroutine, see ``TextReader``.

        It reports by ``name_call``, ``stream_arguments`` or ``add_arguments``, and ``end_call``;
        there may be several calls.

        Raises:
            NotACall: if the text is no call.
        """

    # -- reports of read() ---------------------------------------------------------------------

    def name_call(self, name: str) -> None:
        """Set the function's name of the call being read."""
        if not name or not is_text(name):
            raise NotACall("a name must come")
        self._open_call.name = name

    def stream_arguments(self, reading: Generator[None, None, None]):
        """Run a coroutine, and take the text that it reads as the arguments."""
        text = self._text
        begin = self._text.at
        for _ in reading:
            self.add_arguments(text.text[begin : text.at])
            begin = text.at
            yield
        self.add_arguments(text.text[begin : text.at], last=True)

    def add_arguments(self, words: str, last: bool = False) -> None:
        """Append JSON to the arguments; ``last`` completes them."""
        self._open_call.arguments += words
        self._open_call.ended = last

    def end_call(self) -> None:
        """Complete the call, and use up its text."""
        call = self._open_call
        if call.name is None or not call.arguments:
            raise NotACall("a call has a name and arguments")
        self._give(whole=True)
        assert call.index is not None, "it was given out"
        self.whole.append(call.index)
        self._call = _OpenCall()
        self._gap = ""
        self._text.cut(self._text.at)

    @property
    def _open_call(self) -> _OpenCall:
        assert self._call is not None, "read() runs while a call is open"
        return self._call

    # -- common to all families ----------------------------------------------------------------

    def _go_on(self) -> list[str | DeltaToolCall]:
        next(self._message, None)
        self._give()
        found = self._found
        self._found = []
        return found

    def _read_message(self) -> Generator[None, None, None]:
        """Read the message: content up to a call, the call, and so on. A coroutine."""
        text = self._text
        while True:
            start, opens = self.find(text.text)
            self._say(text.cut(len(text.text) if text.ended and not opens else start))
            if opens:
                self._call = _OpenCall()
                try:
                    yield from self.read(text)
                    text.cut(text.at)
                except NotACall:  # up to the wrong character, which may open another call
                    end = text.at + 1
                    end -= partial_suffix(text.text[:end], self.opening)
                    self._say(text.cut(end))
                self._call = None
            elif text.ended:
                return
            else:
                yield

    def _say(self, text: str) -> None:
        if self._gap is not None:
            text = self._gap + text
            self._gap = None
            if not text.strip(self.between):
                text, self._gap = "", text
        if text:
            self.said_something = True
            self._found.append(text)

    def _give(self, whole: bool = False) -> None:
        """Emit new pieces of the call; the last brace of its arguments only if it is complete."""
        call = self._call
        if call is None or call.name is None or not call.arguments:
            return
        if call.index is None:
            call.index = self.num_calls
            self.num_calls += 1
            self._found.append(DeltaToolCall(call.index, self.make_id(), call.name))
        end = len(call.arguments) - (call.ended and not whole)
        if end > call.given:
            words = call.arguments[call.given : end]
            self._found.append(DeltaToolCall(call.index, arguments=words))
            call.given = end


class ToolParserManager:
    """Parsers by name; ``--tool-call-parser`` takes one of these names."""

    tool_parsers: dict[str, type[ToolParser]] = {}  # noqa: RUF012

    @classmethod
    def register_module(cls, *names: str) -> Callable[[type[ToolParser]], type[ToolParser]]:
        """Class decorator: register a parser under names."""

        def register(parser: type[ToolParser]) -> type[ToolParser]:
            ok = isinstance(parser, type) and issubclass(parser, ToolParser)
            check(ok, "a tool parser", parser, "a subclass of ToolParser")
            cls.tool_parsers |= dict.fromkeys(names, parser)
            return parser

        return register

    @classmethod
    def get_tool_parser(cls, name: str) -> type[ToolParser]:
        """Find a parser by name. Raises ``ValueError`` for an unknown one."""
        ok = name in cls.tool_parsers
        check(ok, "tool_call_parser", name, f"one of {', '.join(sorted(cls.tool_parsers))}")
        return cls.tool_parsers[name]


def partial_suffix(text: str, opening: str) -> int:
    """Number of characters at the end that could be the beginning of an opening."""
    for length in range(min(len(opening) - 1, len(text)), 0, -1):
        if opening.startswith(text[-length:]):
            return length
    return 0
