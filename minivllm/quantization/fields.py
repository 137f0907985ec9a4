"""Fields of a ``quantization_config``: read by name, and refused by name."""

from __future__ import annotations

import re
from typing import Any

from minivllm.utils.validation import check, is_int

_LARGEST_BLOCK = 2**16  # its scale is repeated for every output


class Fields:
    """A part of a quantization's configuration, and the file that it is in."""

    def __init__(self, values: dict[str, Any], source: str):
        self.values = values
        self.source = source

    def one_of(self, names: str, allowed: tuple, default: Any = None) -> Any:
        """The first of some names that is there, with one of the allowed values."""
        name, value = self._find(names, default)
        same = [v for v in allowed if type(v) is type(value) and v == value]
        check(bool(same), f"{name} in {self.source}", value, _listed(allowed))
        return value

    def group_size(self, names: str = "group_size", default: Any = None) -> int:
        """Inputs that share a scale; -1: all."""
        name, value = self._find(names, default)
        ok = is_int(value, 1) or (is_int(value) and value == -1)
        check(ok, f"{name} in {self.source}", value, "a positive integer, or -1 for one group")
        return value

    def strings(self, names: str, nested: bool = False) -> list[str]:
        """A list of strings; empty if it is absent. If it may be nested, also lists of lists."""
        name, value = self._find(names, [])
        if nested and isinstance(value, list):
            lists = [each if isinstance(each, list) else [each] for each in value]
            value = [text for each in lists for text in each]
        ok = isinstance(value, list) and all(isinstance(text, str) for text in value)
        check(ok, f"{name} in {self.source}", value, "a list of strings")
        return value

    def patterns(self, name: str) -> list[str]:
        """A list of names, of which those that begin with "re:" are regular expressions."""
        found = self.strings(name)
        for text in found:
            if text.startswith("re:"):
                check_pattern(text[3:], f"{name} in {self.source}")
        return found

    def block(self, name: str) -> tuple[int, int]:
        """Outputs and inputs of a block of a weight."""
        value: Any = self.values.get(name)
        old = re.fullmatch(r"(\d{1,9})x(\d{1,9})", value) if isinstance(value, str) else None
        if old:  # "128x128"
            value = [int(size) for size in old.groups()]
        ok = isinstance(value, list) and len(value) == 2 and all(is_int(size, 1) for size in value)
        allowed = f"two positive integers, at most {_LARGEST_BLOCK}"
        check(ok and max(value) <= _LARGEST_BLOCK, f"{name} in {self.source}", value, allowed)
        return value[0], value[1]

    def part(self, name: str) -> Fields:
        """An object inside; empty if it is absent."""
        value = self._find(name, {})[1]
        place = f"{name} in {self.source}"
        check(isinstance(value, dict), place, value, "an object")
        return Fields(value, place)

    def _find(self, names: str, default: Any) -> tuple[str, Any]:
        for name in names.split():
            if self.values.get(name) is not None:
                return name, self.values[name]
        return names.split()[0], default


def check_pattern(text: str, what: str) -> None:
    """Raise ``ValueError`` for a text that is no regular expression."""
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError):
        check(False, what, text, "a regular expression")


def _listed(allowed: tuple) -> str:
    return " or ".join(repr(value) for value in allowed)
