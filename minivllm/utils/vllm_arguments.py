"""Arguments of vLLM that are not here: with its default they change nothing, else they are refused.

Scripts name them, so a refusal says whose they are and why they are missing. The names are in
``vllm_arguments.toml``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from minivllm.utils.toml_data import load_toml
from minivllm.utils.validation import InvalidParameter, is_only, shown

T = TypeVar("T")
_OFF = object()  # a default that is None, False, 0 or empty


@cache
def arguments_of(taker: str) -> dict[str, tuple[Any, str]]:
    """Arguments of a class or call of vLLM that are not here: their default, and why."""
    found: dict[str, tuple[Any, str]] = {}
    for group in load_toml(__package__, "vllm_arguments")[taker]:
        why = group["why"]
        found |= dict.fromkeys(group.get("off", ()), (_OFF, why))
        found |= {name: (value, why) for name, value in group.get("default", {}).items()}
    return found


def check_default(what: str, taker: str, name: str, value: Any) -> None:
    """Raise ``InvalidParameter`` unless an argument has vLLM's own default, or None.

    Args:
        what: the class or call that the caller sees.
        taker: its name in the list.
        name, value: of the argument.
    """
    default, why = arguments_of(taker)[name]
    if value is None or (_is_off(value) if default is _OFF else _is_default(value, default)):
        return
    but = "" if default is _OFF else f" but with its default, {default!r}"
    raise InvalidParameter(
        f"{what} has no argument {name!r}{but}: it is vLLM's, not minivllm's ({why}); leave it "
        f"out, got {shown(value)}.",
        name,
    )


def without_defaults(what: str, taker: str, given: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments without those that only vLLM has.

    Raises:
        ValueError: for one of these with another value than its default.
    """
    theirs = arguments_of(taker)
    for name in given.keys() & theirs.keys():
        check_default(what, taker, name, given[name])
    return {name: value for name, value in given.items() if name not in theirs}


def takes_vllm_defaults(taker: str) -> Callable[[type[T]], type[T]]:
    """Class decorator: vLLM's other arguments of this class are taken with their default."""

    def decorate(cls: type[T]) -> type[T]:
        original: Any = cls.__init__

        def __init__(self, *args, **kwargs):
            original(self, *args, **without_defaults(cls.__name__, taker, kwargs))

        # keeps the real signature for help() and notebooks
        __init__.__wrapped__ = original  # type: ignore[attr-defined]
        __init__.__doc__ = original.__doc__
        cls.__init__ = __init__  # type: ignore[method-assign]
        return cls

    return decorate


def _is_off(value: Any) -> bool:
    if isinstance(value, (dict, list, tuple, set, frozenset, str)):
        return len(value) == 0
    return is_only(value, False) or is_only(value, 0)


def _is_default(value: Any, default: Any) -> bool:
    if isinstance(default, list):
        return isinstance(value, (list, tuple)) and list(value) == default
    name = str(value) if type(value).__module__ != "builtins" else value  # of an enumeration
    return is_only(name, default)
