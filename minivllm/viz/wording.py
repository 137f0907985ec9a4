"""Words and tokens on a narrow space: visible blanks, shortening, padding, counting."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

_VISIBLE = {" ": "·", "\n": "↵", "\t": "⇥", "\r": "␍"}


def token_label(token: int, decode: Callable[[int], str] | None, length: int) -> str:
    """A token's text with its blanks made visible, at most ``length`` long; or else its id."""
    if decode is None:
        return str(token)
    text = "".join(_VISIBLE.get(c, c if c.isprintable() else "\ufffd") for c in decode(token))
    return shorten(text, length)


def shorten(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def num_columns(text: str) -> int:
    """How wide a terminal shows it: some characters take two columns, and some none."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(bool(unicodedata.combining(c)) for c in text)


def pad(text: str, width: int) -> str:
    """Fill with blanks up to ``width`` columns."""
    return text + " " * (width - num_columns(text))


def count(number: int, noun: str) -> str:
    """ "1 block", "2 blocks"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def span(first: int, last: int) -> str:
    """ "3" or "3–5"."""
    return str(first) if first == last else f"{first}–{last}"
