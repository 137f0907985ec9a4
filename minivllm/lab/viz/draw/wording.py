"""Wording: token labels, padding, plurals, lists and sparklines for the text of figures."""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from minivllm.lab.translation import TEXTS, translated
from minivllm.utils.math_utils import cdiv

TERMINAL = 96  # columns of text that a figure may take
LEVELS = " ▁▂▃▄▅▆▇█"

_WIDE = r"\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\uff00-\uffef"
_UNITS = re.compile(rf"\s+|[{_WIDE}]|[^\s{_WIDE}]+")
_NEVER_FIRST = "。，、；：？！）」』》"
_NEVER_LAST = "（「『《"
_BLANK_AFTER_MARK = re.compile(rf"(?<=[{_NEVER_FIRST}]) +")

_VISIBLE = {" ": "·", "\n": "↵", "\t": "⇥", "\r": "␍"}


def token_label(token: int, decode: Callable[[int], str] | None, length: int) -> str:
    """A token's text with its blanks made visible, at most ``length`` long; or else its id."""
    if decode is None:
        return str(token)
    text = "".join(_VISIBLE.get(c, c if c.isprintable() else "\ufffd") for c in decode(token))
    return shorten(text, length)


def shorten(text: str, length: int) -> str:
    """A text of at most ``length`` columns."""
    if num_columns(text) <= length:
        return text
    while num_columns(text) > length - 1:
        text = text[:-1]
    return text + "…"


def sentence(told: object) -> str:
    """A text with the full stop of the language."""
    return translated("{}.").format(told)


def sentences(*told: str) -> str:
    """Texts one after the other, with a blank between them but after wide marks."""
    return _BLANK_AFTER_MARK.sub("", " ".join(filter(None, told)))


def wrap(text: str, width: int, subsequent_indent: str = "") -> list[str]:
    """Lines of at most ``width`` columns. Wide characters may part anywhere but at their marks."""
    if num_columns(text) == len(text):
        return textwrap.wrap(text, width, subsequent_indent=subsequent_indent)
    lines = []
    line = ""
    for unit in _units(sentences(text)):
        if line.strip() and num_columns(line + unit.rstrip()) > width:
            lines.append(line.rstrip())
            line = subsequent_indent + unit.lstrip()
        else:
            line += unit
    return [*lines, line.rstrip()] if line.strip() else lines


def _units(text: str) -> Iterator[str]:
    """Pieces between which a line may end: words, blanks, and wide characters with their marks."""
    unit = ""
    for piece in _UNITS.findall(text):
        if unit and piece[0] not in _NEVER_FIRST and unit[-1] not in _NEVER_LAST:
            yield unit
            unit = ""
        unit += piece
    if unit:
        yield unit


def number(value: float) -> str:
    """Three digits that matter."""
    is_long = abs(value) >= 100 or value == int(value)
    return f"{value:.0f}" if is_long else f"{value:.3g}"


def as_drawn(value: float, digits: int) -> float:
    """A number that was computed, rounded to some decimals before it is drawn or printed.

    Its last bits differ between processors, and pixels should not. (``pytest notebooks --draws``
    names those that are so near the middle of two that they may be rounded either way.)
    """
    return round(value, digits)


def num_columns(text: str) -> int:
    """Columns of a text in a terminal: some characters take two, and some none."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(bool(unicodedata.combining(c)) for c in text)


def pad(text: str, width: int) -> str:
    """Fill with blanks up to ``width`` columns."""
    return text + " " * (width - num_columns(text))


def count(number: int, noun: str, plural: str | None = None) -> str:
    """ "1 block", "2 blocks"; in a language that counts otherwise what its catalogue says."""
    if told := TEXTS.get(f"# {noun}"):
        return told.replace("#", str(number))
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"


def ordinal(number: int) -> str:
    """ "1st", "2nd", "11th"."""
    if told := TEXTS.get("#th"):
        return told.replace("#", str(number))
    last = 0 if number // 10 % 10 == 1 else number % 10
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(last, 'th') }"


def span(first: int, last: int) -> str:
    """ "3" or "3–5"."""
    return str(first) if first == last else f"{first}–{last}"


def sparkline(values: Sequence[int], peak: int, per_column: int = 1) -> str:
    """A character per group of values, as high as the largest of them; ``peak`` is full height."""
    columns = (values[i : i + per_column] for i in range(0, len(values), per_column))
    return "".join(LEVELS[cdiv(max(column) * 8, max(1, peak))] for column in columns)


def listing(items: Sequence[str], most: int | None = None) -> str:
    """ "A", "A and B", "A, B and C"; with more than ``most``: "A, B and 7 others"."""
    shown = list(items[:most])
    if len(items) > len(shown):
        shown.append(count(len(items) - len(shown), "other"))
    *first, last = shown or [""]
    return translated(", ").join(first) + translated(" and ") + last if first else last


def block_list(block_ids: Sequence[int]) -> str:
    """ "block 3", "blocks 3 and 5", "blocks 2, 4 to 7 and 9"; of many runs, how many blocks."""
    runs = [
        [block_id for _, block_id in run]
        for _, run in groupby(enumerate(block_ids), lambda pair: pair[1] - pair[0])
    ]
    parts: list[str] = []
    for run in runs:
        is_long = len(run) > 2
        parts += [f"{run[0]}{translated(' to ')}{run[-1]}"] if is_long else map(str, run)
    if len(parts) > 8:
        return count(len(block_ids), "block")
    noun = translated("blocks" if len(block_ids) > 1 else "block")
    return f"{noun} {listing(parts)}"
