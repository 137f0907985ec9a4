"""ToolParser: fed with a text piece by piece, it says what is content and what is a call.

A call is given out when it is whole and well formed, its name first, then its arguments in the
pieces in which they came; until then it is held back. So nothing has to be taken back, and a text
fed at once gives the same as one fed character by character. What is no call is content.
(vLLM: vllm/tool_parsers/abstract_tool_parser.py)
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from minivllm.entrypoints.openai.tool_parsers.call_form import CallForm
from minivllm.validation import check


@dataclass(frozen=True)
class ParsedCall:
    """A call as it stands in a text."""

    name: str
    arguments: str  # a JSON object, as text
    start: int | None = None  # where the arguments begin in the text, if they stand there so


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
    """What a whole text comes to."""

    tool_calls: list[ToolCall] = field(default_factory=list)
    content: str | None = None  # None: nothing but calls

    @property
    def tools_called(self) -> bool:
        return bool(self.tool_calls)


class ToolParser(ABC):
    """Reads one message. A subclass knows one family's form."""

    closers: str  # a call can only have become whole where one of these characters came
    form: CallForm | None = None  # what forces calls; None: they cannot be forced
    between = " \t\r\n"  # what may stand behind a call without being content

    def __init__(self):
        self.num_calls = 0
        self.said_something = False  # content has been given out
        self._text = ""  # what has come and was not given out
        self._cuts: list[int] = []  # where in it pieces began
        self._inside = False  # the text begins with what opens a call
        self.looked_until = 0  # what in it cannot be the call's end, as ``read`` has found
        self._gap: str | None = None  # blanks right behind a call: perhaps there comes another

    def extract_tool_calls(self, model_output: str) -> ExtractedToolCallInformation:
        """Calls and content of a whole text."""
        found, content = ExtractedToolCallInformation(), ""
        for delta in [*self.extract_tool_calls_streaming(model_output), *self.finish()]:
            if isinstance(delta, str):
                content += delta
            elif delta.id is not None:
                found.tool_calls.append(ToolCall(delta.id, delta.name))
            else:
                found.tool_calls[delta.index].arguments += delta.arguments
        if content or not found.tool_calls:
            found.content = content
        return found

    def extract_tool_calls_streaming(self, delta_text: str) -> list[str | DeltaToolCall]:
        """Go on by a piece of text. Returns pieces of content and of calls, in order."""
        self._cuts.append(len(self._text))
        self._text += delta_text
        return list(self._go_on(any(char in delta_text for char in self.closers), False))

    def finish(self) -> list[str | DeltaToolCall]:
        """The text has ended. Returns what was held back."""
        return list(self._go_on(True, True))

    @staticmethod
    def make_id() -> str:
        """A new call's id."""
        return f"chatcmpl-tool-{uuid.uuid4().hex}"

    # -- what a subclass knows -----------------------------------------------------------------

    @abstractmethod
    def find(self, text: str) -> tuple[int, bool]:
        """Where a call opens: the index, and True. If the end of the text may yet become an
        opening: its index, and False. Else the text's length, and False."""

    @abstractmethod
    def read(self, text: str, finished: bool) -> tuple[list[ParsedCall], int] | None:
        """The calls at the beginning of a text that opens one, and where they end.

        Without calls, what is before that end is content. None: more text is needed.
        """

    # -- the same for all ----------------------------------------------------------------------

    def _go_on(self, closed: bool, finished: bool) -> Iterator[str | DeltaToolCall]:
        while self._text:
            if not self._inside:
                start, self._inside = self.find(self._text)
                yield from self._content(
                    self._take(len(self._text) if finished and not self._inside else start)
                )
                if not self._inside:
                    return
                closed = True  # the rest has not been looked at
            if not closed:
                return
            found = self.read(self._text, finished)
            if found is None and not finished:
                return
            calls, end = found or ([], len(self._text))
            for call in calls:
                yield from self._call(call)
            taken = self._take(end)
            if not calls:
                yield from self._content(taken)
            self._inside = False

    def _take(self, end: int) -> str:
        """Drop the beginning of the text, and return it."""
        taken, self._text, self.looked_until = self._text[:end], self._text[end:], 0
        self._cuts = [cut - end for cut in self._cuts if cut > end]
        return taken

    def _content(self, text: str) -> Iterator[str]:
        if self._gap is not None:
            text, self._gap = self._gap + text, None
            if not text.strip(self.between):
                text, self._gap = "", text
        if text:
            self.said_something = True
            yield text

    def _call(self, call: ParsedCall) -> Iterator[DeltaToolCall]:
        index, self._gap = self.num_calls, ""
        self.num_calls += 1
        yield DeltaToolCall(index, self.make_id(), call.name)
        cuts = [] if call.start is None else [cut - call.start for cut in self._cuts]
        cuts = [0, *(cut for cut in cuts if 0 < cut < len(call.arguments)), len(call.arguments)]
        for begin, end in pairwise(cuts):
            yield DeltaToolCall(index, arguments=call.arguments[begin:end])


class ToolParserManager:
    """Parsers by name; ``--tool-call-parser`` takes one of these names."""

    tool_parsers: dict[str, type[ToolParser]] = {}  # noqa: RUF012

    @classmethod
    def register_module(cls, *names: str) -> Callable[[type[ToolParser]], type[ToolParser]]:
        """Class decorator: a parser of one's own gets names."""

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
