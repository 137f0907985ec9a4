"""JSON files of a model's directory: an object each, in UTF-8 whatever the locale says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_json_object(file: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        OSError: if there is no such file.
        ValueError: if it is no JSON in UTF-8, or another value than an object.
    """
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{file} cannot be read: it must be a JSON object, and is {_kind(found)}.")
    return found


def _kind(value: Any) -> str:
    names = {list: "an array", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
