"""How bad input is refused: one sentence that names the thing, its value and what would do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, TypeVar

T = TypeVar("T")


def check_names(what: str, given: Iterable[str], allowed: Iterable[str]) -> None:
    """Raise ``ValueError`` for the first name that is not allowed, with the nearest one that is."""
    allowed = list(allowed)
    for name in given:
        if name not in allowed:
            near = difflib.get_close_matches(name, allowed, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(allowed))}."
            raise ValueError(f"{what} has no argument {name!r}; {hint}")


def check(ok: bool, name: str, value: Any, allowed: str) -> None:
    """Raise ``ValueError`` saying that ``name`` must be ``allowed``, and what it is."""
    if not ok:
        raise ValueError(f"{name} must be {allowed}, got {value!r}.")


def is_int(value: Any, low: int | None = None) -> bool:
    """True for an integer (a bool is none), at least ``low`` if that is given."""
    return isinstance(value, int) and not isinstance(value, bool) and (low is None or value >= low)


def is_number(value: Any) -> bool:
    """True for a finite int or float (a bool is neither)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return value == value and abs(value) != float("inf")


def known_names_only(cls: type[T]) -> type[T]:
    """Class decorator for a dataclass: an unknown keyword is a clear ``ValueError``."""
    names = [field.name for field in fields(cls) if field.init]
    original: Any = cls.__init__  # type: ignore[misc]

    def __init__(self, *args, **kwargs):
        check_names(cls.__name__, kwargs, names)
        original(self, *args, **kwargs)

    __init__.__wrapped__ = original  # type: ignore[attr-defined]  # keeps the real signature for help() and notebooks
    __init__.__doc__ = original.__doc__
    cls.__init__ = __init__  # type: ignore[method-assign]
    return cls
