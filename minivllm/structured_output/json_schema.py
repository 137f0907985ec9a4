"""Changes to a JSON schema before a grammar is made of it: each schema in it, and nothing else.

What a schema only quotes (a constant, an example) may look like a schema, and stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Keywords whose value has a schema for each name, and those whose value is no schema.
_NAMED = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
_QUOTED = {"const", "enum", "default", "examples"}
# Formats of the standard that llguidance does not know. They are annotations, as the standard lets
# every format be: texts are not held to them.
_ANNOTATIONS = {"idn-email", "idn-hostname", "iri", "iri-reference", "json-pointer", "regex",
                "relative-json-pointer", "uri-reference", "uri-template"}  # fmt: skip


def closed(schema: Any) -> Any:
    """The schema with ``additionalProperties: false`` in each object that has properties."""

    def close(one: dict[str, Any]) -> dict[str, Any]:
        if isinstance(one.get("properties"), dict) or "patternProperties" in one:
            return {"additionalProperties": False} | one
        return one

    return _changed(schema, close)


def without_annotations(schema: Any) -> Any:
    """The schema without the formats that nothing can be held to."""

    def strip(one: dict[str, Any]) -> dict[str, Any]:
        name = one.get("format")
        known = not isinstance(name, str) or name not in _ANNOTATIONS
        return one if known else {k: v for k, v in one.items() if k != "format"}

    return _changed(schema, strip)


def _changed(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """A copy in which ``change`` has been called with each schema, the inner ones first."""
    if isinstance(schema, list):
        return [_changed(item, change) for item in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {}
    for key, value in schema.items():
        if key in _QUOTED:
            parts[key] = value
        elif key in _NAMED and isinstance(value, dict):
            parts[key] = {name: _changed(one, change) for name, one in value.items()}
        else:
            parts[key] = _changed(value, change)
    return change(parts)
