"""Chats of four kinds: some answers copy their prompt, others do not."""

from __future__ import annotations

from functools import cache
from typing import Any

from minivllm.utils.toml_data import load_toml

Messages = list[dict[str, str]]


@cache
def _texts() -> dict[str, Any]:
    return load_toml(__package__, "chats")


def table_chat(question: str) -> Messages:
    """A question behind a table of four people."""
    return [{"role": "system", "content": _texts()["system"]}, *_request(question)]


def chats() -> dict[str, list[Messages]]:
    """All kinds, by name; the first one is questions about the table."""
    found = {}
    for kind, described in _texts()["kinds"].items():
        make = table_chat if described["has_table"] else _request
        found[kind] = [make(described["form"].format(value)) for value in described["values"]]
    return found


def _request(text: str) -> Messages:
    return [{"role": "user", "content": text}]
