"""Answers: parsing and type checks of what a reader hands in; errors are ``NotYet``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from numbers import Real
from operator import eq, index
from typing import Any

MOST = 10**18  # no answer is as large; a longer number cannot even be shown


class NotYet(Exception):
    """An answer is wrong; the message says in which way.

    Args:
        message: names what is wrong.
        value: the message of a second miss at the same place, which also says what is right.
    """

    def __init__(self, message: str, value: str | None = None):
        super().__init__(message)
        self.value = value


def compare(
    answer: Any,
    right: Any,
    mistakes: Mapping[str, Any],
    wrong: str,
    value: str | None = None,
    same: Callable[[Any, Any], bool] = eq,
    at: str = "",
) -> None:
    """Raise ``NotYet`` unless an answer is right.

    Args:
        answer, right: the two to compare.
        mistakes: by explanation, the answer that this mistake leads to. The first
            one that fits is told.
        wrong, value: the message of any other answer, as ``NotYet`` takes it.
        same: what compares two of them.
        at: the place of the answer, said before an explanation.
    """
    if same(answer, right):
        return
    for explanation, mistaken in mistakes.items():
        if same(answer, mistaken):
            raise NotYet(f"{at}{explanation}")
    raise NotYet(wrong, value)


def is_blank(answer: Any, depth: int = 4) -> bool:
    """None and ``...`` stand for "no answer yet", also inside a list, a tuple or a dict."""
    if answer is None or answer is ...:
        return True
    parts = answer.values() if isinstance(answer, Mapping) else answer
    nested = isinstance(answer, (Mapping, list, tuple))
    return nested and depth > 0 and any(is_blank(part, depth - 1) for part in parts)


def whole(value: Any) -> int | None:
    """Return an integer, also one of NumPy's or torch's, or 42 of 42.0; None for anything else."""
    if isinstance(value, bool):
        return None
    try:
        number = index(value)
    except TypeError:
        if not (isinstance(value, Real) and value == value // 1):
            return None
        number = int(value)
    return number if abs(number) < MOST else None


def is_whole(value: Any) -> bool:
    """True for what ``whole`` takes for a number."""
    return whole(value) is not None


def whole_number(answer: Any) -> int:
    """The answer, if it is a whole number; else a word about that."""
    if (number := whole(answer)) is None:
        raise NotYet("give a whole number.")
    return number


def whole_numbers(answer: Any, names: Sequence[str]) -> list[int]:
    """One whole number for each name, in their order."""
    ok = isinstance(answer, (list, tuple)) and len(answer) == len(names)
    if not ok or not all(map(is_whole, answer)):
        raise NotYet(f"give {len(names)} whole numbers: {', '.join(names)}.")
    return list(map(whole, answer))


def number_list(answer: Any, what: str) -> list[int]:
    """A list of whole numbers of any length."""
    if not isinstance(answer, (list, tuple)) or not all(map(is_whole, answer)):
        raise NotYet(f"give a list of whole numbers: {what}.")
    return list(map(whole, answer))


def numbers_by_name(answer: Any, names: Collection[Any], what: str) -> dict[Any, int]:
    """A dict from (some of) these names to whole numbers."""
    names = list(names)
    example = names[0]
    last = names[-1]
    if not isinstance(answer, Mapping) or not all(map(is_whole, answer.values())):
        raise NotYet(f"give a dict of whole numbers, like {{{example!r}: 1}}: {what}.")
    for name in answer:
        if name not in names:
            known = ", ".join(map(str, names)) if len(names) < 10 else f"{example} to {last}"
            raise NotYet(f"{name!r} is none of {known}.")
    return {name: whole(number) for name, number in answer.items()}
