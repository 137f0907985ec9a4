"""ToolParser: splits a text, fed piece by piece, into content and tool calls.

A call is given out while it comes: its id and name as soon as its arguments begin, then its
arguments as they grow. Only their last brace waits until the whole call is well formed, so
arguments that can be read as JSON are those of a call that stands. What turns out to be no call is
content, every character of it. (vLLM: vllm/tool_parsers/abstract_tool_parser.py)
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from minivllm.entrypoints.openai.tool_parsers.call_form import CallForm
from minivllm.entrypoints.openai.tool_parsers.text_reader import NotACall, TextReader
from minivllm.validation import check, is_text


@dataclass(frozen=True)
class DeltaToolCall:
    """A piece of a call: first its id and name, then its arguments bit by bit."""

    index: int  # of the call in its message
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass
class ToolCall:
    """A whole call."""

    id: str
    name: str
    arguments: str = ""


@dataclass
class ExtractedToolCallInformation:
    """Content and tool calls of a whole text."""

    tool_calls: list[ToolCall] = field(default_factory=list)
    content: str | None = None  # None: nothing but calls

    @property
    def tools_called(self) -> bool:
        return bool(self.tool_calls)


@dataclass
class _OpenCall:
    """A call that is being read."""

    name: str | None = None
    arguments: str = ""  # as far as they have come
    ended: bool = False  # they have all come
    index: int | None = None  # None: nothing of it has been given out
    given: int = 0  # how many characters of its arguments have been


class ToolParser(ABC):
    """Reads one message. A subclass knows one family's form."""

    opening = ""  # what a call begins with; a subclass without one has a ``find`` of its own
    form: CallForm | None = None  # what forces calls; None: they cannot be forced
    between = " \t\r\n"  # what may stand behind a call without being content

    def __init__(self):
        self.num_calls = 0  # that have begun to be given out
        self.whole: list[int] = []  # indexes of those that are whole
        self.said_something = False  # content has been given out
        self._text = TextReader()
        self._call: _OpenCall | None = None  # None: content is being read
        self._gap: str | None = None  # blanks right behind a call: perhaps there comes another
        self._found: list[str | DeltaToolCall] = []
        self._message = self._read_message()

    def extract_tool_calls(self, model_output: str) -> ExtractedToolCallInformation:
        """Calls and content of a whole text."""
        found, calls, content = ExtractedToolCallInformation(), {}, ""
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

        A call of which pieces were given out may still turn out to be none: then its arguments
        never become JSON, its index never gets into ``whole``, and its text follows as content.
        """
        self._text.text += delta_text
        return self._go_on()

    def finish(self) -> list[str | DeltaToolCall]:
        """The text has ended. Returns what was held back."""
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
        """A new call's id."""
        return f"chatcmpl-tool-{uuid.uuid4().hex}"

    # -- what a subclass knows -----------------------------------------------------------------

    def find(self, text: str) -> tuple[int, bool]:
        """Where a call opens: the index, and True. If the end of the text may yet become an
        opening: its index, and False. Else the text's length, and False."""
        at = text.find(self.opening)
        return (at, True) if at >= 0 else (len(text) - partial_suffix(text, self.opening), False)

    @abstractmethod
    def read(self, text: TextReader) -> Generator[None, None, None]:
        """Read on from where a call opens to behind its end. A coroutine, see ``TextReader``.

        It tells what it finds by ``name_call``, ``stream_arguments`` or ``add_arguments``, and
        ``end_call``; of these last there may be several.

        Raises:
            NotACall: if this is none.
        """

    # -- what it tells -------------------------------------------------------------------------

    def name_call(self, name: str) -> None:
        """What is called."""
        if not name or not is_text(name):
            raise NotACall("a name must come")
        self._open_call.name = name

    def stream_arguments(self, reading: Generator[None, None, None]):
        """What this coroutine reads are the arguments, as they stand in the text."""
        text, begin = self._text, self._text.at
        for _ in reading:
            self.add_arguments(text.text[begin : text.at])
            begin = text.at
            yield
        self.add_arguments(text.text[begin : text.at], last=True)

    def add_arguments(self, words: str, last: bool = False) -> None:
        """Arguments, or more of them, as JSON; the last of them, if they end with these."""
        self._open_call.arguments += words
        self._open_call.ended = last

    def end_call(self) -> None:
        """The call is whole: what has been read of the text was a call."""
        call = self._open_call
        if call.name is None or not call.arguments:
            raise NotACall("a call has a name and arguments")
        self._give(whole=True)
        assert call.index is not None, "it was given out"
        self.whole.append(call.index)
        self._call, self._gap = _OpenCall(), ""
        self._text.cut(self._text.at)

    @property
    def _open_call(self) -> _OpenCall:
        assert self._call is not None, "read() runs while a call is open"
        return self._call

    # -- the same for all ----------------------------------------------------------------------

    def _go_on(self) -> list[str | DeltaToolCall]:
        next(self._message, None)
        self._give()
        found, self._found = self._found, []
        return found

    def _read_message(self) -> Generator[None, None, None]:
        """The whole message, as if it were there: content up to a call, the call, and so on."""
        text = self._text
        while True:
            start, opens = self.find(text.text)
            self._say(text.cut(len(text.text) if text.ended and not opens else start))
            if opens:
                self._call = _OpenCall()
                try:
                    yield from self.read(text)
                    text.cut(text.at)
                except NotACall:  # with the character that shows it, but it may open another
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
            text, self._gap = self._gap + text, None
            if not text.strip(self.between):
                text, self._gap = "", text
        if text:
            self.said_something = True
            self._found.append(text)

    def _give(self, whole: bool = False) -> None:
        """Give out what has come of a call; its last brace only if it is whole."""
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
        """Raises ``ValueError`` for an unknown name."""
        ok = name in cls.tool_parsers
        check(ok, "tool_call_parser", name, f"one of {', '.join(sorted(cls.tool_parsers))}")
        return cls.tool_parsers[name]


def partial_suffix(text: str, opening: str) -> int:
    """How many of the last characters could be the beginning of an opening."""
    for length in range(min(len(opening) - 1, len(text)), 0, -1):
        if opening.startswith(text[-length:]):
            return length
    return 0
