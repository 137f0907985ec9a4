"""Texts to measure speculation on: some repeat their prompt, others do not."""

from __future__ import annotations

from itertools import cycle
from typing import NamedTuple

from minivllm.lab.lesson_table import lesson_table
from minivllm.utils.toml_data import load_toml

Messages = list[dict[str, str]]


class Texts(NamedTuple):
    """Chats of one kind, and how long an answer may be."""

    chats: list[Messages]
    max_tokens: int


def table_questions(count: int = 20) -> list[Messages]:
    """Questions about the table's first people, one about each."""
    table = lesson_table()
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in table.splitlines()]
    asked = cycle(("age", "occupation", "country", "email", "phone number", "address"))
    system = {"role": "system", "content": f"Answer questions about this table.\n\n{table}"}
    return [
        [system, {"role": "user", "content": f"What is the {column} of {row[1]}?"}]
        for row, column in zip(rows[2 : 2 + count], asked, strict=False)
    ]


def texts() -> dict[str, Texts]:
    """All kinds, by name."""
    found = {"table": Texts(table_questions(), 60)}
    for kind, described in load_toml(__package__, "speculation_texts").items():
        requests = map(described["form"].format, described["values"])
        chats = [[{"role": "user", "content": request}] for request in requests]
        found[kind] = Texts(chats, described["max_tokens"])
    return found
