"""Fields of a ``quantization_config``: read by name, and refused by name."""

from __future__ import annotations

from typing import Any

from minivllm.utils.validation import check, is_int


class Fields:
    """A part of a quantization's configuration, and the file that it is in."""

    def __init__(self, values: Any, source: str):
        check(isinstance(values, dict), f"quantization_config in {source}", values, "an object")
        self.values, self.source = values, source

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

    def strings(self, names: str) -> list[str]:
        """A list of strings; empty if it is absent or null."""
        name, value = self._find(names, None)
        ok = value is None or (isinstance(value, list) and all(isinstance(v, str) for v in value))
        check(ok, f"{name} in {self.source}", value, "a list of strings")
        return value or []

    def part(self, name: str) -> Fields | None:
        """An object inside, or None."""
        value = self.values.get(name)
        return None if value is None else Fields(value, f"{name} in {self.source}")

    def _find(self, names: str, default: Any) -> tuple[str, Any]:
        for name in names.split():
            if name in self.values:
                return name, self.values[name]
        return names.split()[0], default


def _listed(allowed: tuple) -> str:
    return " or ".join(repr(value) for value in allowed)
