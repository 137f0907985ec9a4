"""JSON files of a model's directory, in UTF-8 whatever the locale says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_KINDS = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "true or false",
    type(None): "null",
}


def read_json_object(file: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        OSError: if there is no such file.
        ValueError: if it is no JSON in UTF-8, or another value than an object.
    """
    found = _read(file)
    if not isinstance(found, dict):
        raise ValueError(f"{file} cannot be read: it must be a JSON object, and is {_kind(found)}.")
    return found


def read_json_array(file: Path) -> list[Any]:
    """Read a JSON array; errors as ``read_json_object``'s."""
    found = _read(file)
    if not isinstance(found, list):
        raise ValueError(f"{file} cannot be read: it must be a JSON array, and is {_kind(found)}.")
    return found


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), "a number")
