"""TextReader: coroutines that parse a text which arrives piece by piece.

Its methods are coroutines (generators): where the text does not go on yet, they ``yield``, and go
on from that very place when there is more of it. So whoever reads with them is written like a
parser of a whole text, and can be stopped between any two characters.
"""

from __future__ import annotations

import re
from collections.abc import Generator

BLANKS = re.compile(r"[ \t\r\n]*")


class NotACall(ValueError):
    """Error: the text here is no call, so it is content."""


class TextReader:
    """The part of a text that is not used up, and how far it has been read."""

    def __init__(self):
        self.text = ""
        self.at = 0  # what is before has been read
        self.ended = False  # no more will come

    def cut(self, end: int) -> str:
        """Use up the beginning of the text. Returns it."""
        taken, self.text, self.at = self.text[:end], self.text[end:], 0
        return taken

    def peek(self, count: int = 1) -> Generator[None, None, str]:
        """The next characters, not read yet; fewer of them, or "", where the text ends."""
        while len(self.text) < self.at + count and not self.ended:
            yield
        return self.text[self.at : self.at + count]

    def run_of(self, characters: re.Pattern) -> Generator[None, None, str]:
        """Read as far as the pattern goes, which is one of single characters, repeated."""
        begin = self.at
        while True:
            run = characters.match(self.text, self.at)
            self.at = self.at if run is None else run.end()
            if self.at < len(self.text) or self.ended:
                return self.text[begin : self.at]
            yield

    def skip(self, characters: re.Pattern = BLANKS) -> Generator[None, None, str]:
        """Read over blanks. Returns the character that comes next, not read yet."""
        yield from self.run_of(characters)
        return (yield from self.peek())

    def expect(self, words: str) -> Generator[None, None, None]:
        """Read these words.

        Raises:
            NotACall: if other ones come.
        """
        for char in words:
            if (yield from self.peek()) != char:
                raise NotACall(f"{words!r} must come")
            self.at += 1
