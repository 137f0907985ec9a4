"""lesson_table: the long text that the lesson on prefix caching asks about."""

from __future__ import annotations

from pathlib import Path


def lesson_table() -> str:
    """Thirty people in a table of eight columns: the one of the notes on prefix caching."""
    return (Path(__file__).parent / "people.md").read_text(encoding="utf-8")
