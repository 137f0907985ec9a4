"""Validation: errors that name a field, its value and what is allowed."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, TypeVar

T = TypeVar("T")

_MOST_BITS = 4096
_LONGEST = 300  # characters of a value that a message shows


class InvalidParameter(ValueError):
    """Error: a value that is not allowed, and the parameter that has it."""

    def __init__(self, message: str, parameter: str):
        super().__init__(message)
        self.parameter = parameter

    def __reduce__(self):
        return type(self), (str(self), self.parameter)  # it may come from the engine's process


def check_names(what: str, given: Iterable[str], allowed: Iterable[str]) -> None:
    """Raise ``ValueError`` for the first name that is not allowed, with the nearest one that is."""
    allowed = list(allowed)
    for name in given:
        if name not in allowed:
            near = difflib.get_close_matches(name, allowed, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(allowed))}."
            raise ValueError(f"{what} has no argument {name!r}; {hint}")


def check(ok: bool, name: str, value: Any, allowed: str) -> None:
    """Raise ``InvalidParameter`` saying that ``name`` must be ``allowed``, and what it is."""
    if not ok:
        raise InvalidParameter(f"{name} must be {allowed}, got {shown(value)}.", name)


def check_booleans(args: Any) -> None:
    """Raise ``InvalidParameter`` for a dataclass's field of type bool that has another value."""
    for field in fields(args):
        value = getattr(args, field.name)
        if field.type == "bool":
            check(isinstance(value, bool), field.name, value, "True or False")
        elif field.type == "bool | None":
            ok = value is None or isinstance(value, bool)
            check(ok, field.name, value, "True, False or None")


def shown(value: Any) -> str:
    """Text of a value for an error message: of any value, never long."""
    try:
        text = repr(value)
    except Exception:  # more digits than Python writes, or an object with a repr of its own
        long = isinstance(value, int)
        text = f"one of {value.bit_length()} bits" if long else f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def is_int(value: Any, low: int | None = None) -> bool:
    """True for an integer (a bool is none), at least ``low`` if that is given.

    One that cannot even be written down, as its digits are thousands, is none either.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return (low is None or value >= low) and value.bit_length() <= _MOST_BITS


def is_number(value: Any) -> bool:
    """True for an int or float (a bool is neither) that is finite as a float."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


def is_text(value: Any) -> bool:
    """True for a string that can be written down: one without halves of surrogate pairs."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_only(value: Any, one: str | float | None) -> bool:
    """True if the value is this very object; its ``__eq__`` is never called."""
    if isinstance(one, str):
        return isinstance(value, str) and value == one
    if one is None or isinstance(one, bool):
        return value is one
    return is_number(value) and value == one


def is_one_of(value: Any, names: Iterable[str]) -> bool:
    """True for one of these names."""
    return isinstance(value, str) and value in names


def known_names_only(cls: type[T]) -> type[T]:
    """Class decorator for a dataclass: an unknown keyword is a clear ``ValueError``."""
    names = [field.name for field in fields(cls) if field.init]  # type: ignore[arg-type]
    original: Any = cls.__init__

    def __init__(self, *args, **kwargs):
        check_names(cls.__name__, kwargs, names)
        original(self, *args, **kwargs)

    # keeps the real signature for help() and notebooks
    __init__.__wrapped__ = original  # type: ignore[attr-defined]
    __init__.__doc__ = original.__doc__
    cls.__init__ = __init__  # type: ignore[method-assign]
    return cls
