"""Texts to measure speculation on: some repeat their prompt, others do not."""

from __future__ import annotations

from itertools import cycle
from typing import NamedTuple

from minivllm.lab.exercises.lesson_table import lesson_table

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

    def asked(form: str, *values: str) -> list[Messages]:
        return [[{"role": "user", "content": form.format(value)}] for value in values]

    people = ("Lucy Davis", "Omar Reyes", "Lena Novak", "Hugo Jansen", "Ines Costa")
    facts = [
        f"{name} can be reached at {name.lower().replace(' ', '.')}@example.com and answers the "
        f"phone at 555-{1071 + 968 * i}."
        for i, name in enumerate(people)
    ]
    topics = ("rivers", "music", "the sea", "bread", "winter", "trains")
    countries = ("France", "Japan", "Peru", "Kenya", "Norway", "Canada")
    return {
        "table": Texts(table_questions(), 60),
        "JSON": Texts(asked("Extract name, email and phone as a JSON object: {}", *facts), 60),
        "capitals": Texts(asked("What is the capital of {}?", *countries), 40),
        "essays": Texts(asked("Write a short essay about {}.", *topics), 120),
    }
