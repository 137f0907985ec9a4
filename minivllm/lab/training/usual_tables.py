"""Tables and questions as people usually write them, to measure the model by.

This generator shares no code and no word list with the one that makes the training text
(``tables.py``): what it measures is not quite what was practised.
"""

import random
from types import SimpleNamespace

from minivllm.embedded.data.lists import load_lists
from minivllm.embedded.data.sample import Sample

COLUMNS = ("ID", "Name", "Age", "Occupation", "Country", "Email", "Phone Number", "Address")
IN_WORDS = {"ID": "ID", "Phone Number": "phone number"}
_LISTS = load_lists(__package__, "usual_tables")


def drawn_person(rng: random.Random, number: int, first: str) -> dict[str, str]:
    last = rng.choice(_LISTS.last)
    return {
        "ID": str(number),
        "Name": f"{first} {last}",
        "Age": str(rng.randint(18, 79)),
        "Occupation": rng.choice(_LISTS.occupations),
        "Country": rng.choice(_LISTS.countries),
        "Email": f"{first}.{last}@example.com".lower(),
        "Phone Number": f"555-{rng.randint(0, 9999):04d}",
        "Address": f"{rng.randint(1, 999)} {rng.choice(_LISTS.streets)}, "
        f"{rng.choice(_LISTS.cities)}",
    }


def drawn_table(people: list[dict[str, str]], columns: list[str], padded: bool) -> str:
    rows = [{column: column for column in columns}, *people]
    widths = {c: max(len(row[c]) for row in rows) if padded else 0 for c in columns}
    lines = ["| " + " | ".join(row[c].ljust(widths[c]) for c in columns) + " |" for row in rows]
    rule = "|" + "|".join("-" * (widths[c] + 2 if padded else 3) for c in columns) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def ask_about(
    rng: random.Random,
    sample: Sample,
    people: list[dict[str, str]],
    asked: list[str],
    count: int,
    lists: SimpleNamespace,
) -> None:
    """Questions about these columns; one in eight is about a person who is not in the table."""
    for _ in range(count):
        person = rng.choice(people)
        column = rng.choice(asked)
        absent = rng.random() < 1 / 8
        name = rng.choice(lists.absent) if absent else person["Name"]
        cell = "not in the table" if absent else person[column]
        sample.turn("user", rng.choice(lists.questions[column]).format(name))
        answer = f"The {IN_WORDS.get(column, column.lower())} of {name} is {cell}."
        sample.answer(answer, "missing" if absent else column)


def usual_conversation(rng: random.Random, rows: int, padded: bool) -> Sample:
    """Up to three questions about one table."""
    some = rng.sample(COLUMNS, rng.randint(4, 8))
    columns = [column for column in COLUMNS if column in some or column == "Name"]
    firsts = rng.sample(_LISTS.first, rows)
    people = [drawn_person(rng, number, first) for number, first in enumerate(firsts, start=1)]
    sample = Sample("usual table")
    sample.turn("system", rng.choice(_LISTS.around).format(drawn_table(people, columns, padded)))
    asked = [column for column in columns if column != "Name"]
    count = rng.randint(1, 3)
    ask_about(rng, sample, people, asked=asked, count=count, lists=_LISTS)
    return sample
