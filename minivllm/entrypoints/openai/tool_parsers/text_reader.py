"""TextReader: coroutines that parse a text which arrives piece by piece (notebook 16).

Its methods are coroutines (generators). At the end of the text so far they ``yield``, and continue
from there when more has come. So a parser that uses them is written like one for a whole text, and
can stop between any two characters.
"""

from __future__ import annotations

import re
from collections.abc import Generator

BLANKS = re.compile(r"[ \t\r\n]*")


class NotACall(ValueError):
    """Error: the text is no call, so it is content."""


class TextReader:
    """The rest of a text, and the position of the next character to read."""

    def __init__(self):
        self.text = ""
        self.at = 0  # position of the next character
        self.ended = False  # no more text will come

    def cut(self, end: int) -> str:
        """Remove the beginning of the text. Returns it."""
        taken = self.text[:end]
        self.text = self.text[end:]
        self.at = 0
        return taken

    def peek(self, count: int = 1) -> Generator[None, None, str]:
        """The next characters, not read yet; fewer of them, or "", where the text ends."""
        while len(self.text) < self.at + count and not self.ended:
            yield
        return self.text[self.at : self.at + count]

    def run_of(self, characters: re.Pattern) -> Generator[None, None, str]:
        """Read characters as long as they match a pattern like ``[a-z]*``."""
        begin = self.at
        while True:
            run = characters.match(self.text, self.at)
            self.at = self.at if run is None else run.end()
            if self.at < len(self.text) or self.ended:
                return self.text[begin : self.at]
            yield

    def skip(self, characters: re.Pattern = BLANKS) -> Generator[None, None, str]:
        """Skip blanks. Returns the next character, not read yet."""
        yield from self.run_of(characters)
        return (yield from self.peek())

    def expect(self, words: str) -> Generator[None, None, None]:
        """Read this text.

        Raises:
            NotACall: for any other text.
        """
        for char in words:
            if (yield from self.peek()) != char:
                raise NotACall(f"{words!r} must come")
            self.at += 1
