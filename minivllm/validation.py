"""How bad input is refused: one sentence that names the thing, its value and what would do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class InvalidParameter(ValueError):
    """A value that is not allowed (vLLM: ``VLLMValidationError``), and which parameter has it."""

    def __init__(self, message: str, parameter: str):
        super().__init__(message)
        self.parameter = parameter


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
        raise InvalidParameter(f"{name} must be {allowed}, got {value!r}.", name)


def check_unicode(name: str, text: str) -> None:
    """Raise ``InvalidParameter`` for half of a surrogate pair, which JSON can write: no text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidParameter(f"{name} must be valid Unicode: {error}.", name) from error


def is_int(value: Any, low: int | None = None) -> bool:
    """True for an integer (a bool is none), at least ``low`` if that is given."""
    return isinstance(value, int) and not isinstance(value, bool) and (low is None or value >= low)


def is_number(value: Any) -> bool:
    """True for a finite int or float (a bool is neither)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return value == value and abs(value) != float("inf")


def known_names_only(cls: type) -> type:
    """Class decorator for a dataclass: an unknown keyword is a clear ``ValueError``."""
    fields = [name for name, field in cls.__dataclass_fields__.items() if field.init]
    original = cls.__init__

    def __init__(self, *args, **kwargs):
        check_names(cls.__name__, kwargs, fields)
        original(self, *args, **kwargs)

    __init__.__wrapped__ = original  # keeps the real signature for help() and notebooks
    __init__.__doc__ = original.__doc__
    cls.__init__ = __init__
    return cls
