"""SQL queries for questions about a table of two columns, in the form of the `sql-lora` adapter."""

import random

from minivllm.embedded.data.lists import WORDS, load_lists
from minivllm.embedded.data.people import invented_word
from minivllm.embedded.data.sample import Sample

_LISTS = load_lists(__package__, "sql")


def _acronym(rng: random.Random, held_out: bool) -> str:
    if not held_out and rng.random() < 0.5:
        return rng.choice(_LISTS.acronyms)
    return "".join(rng.choice("abcdefghiilmnoprstuaeiou") for _ in range(rng.randint(3, 4)))


def _column(rng: random.Random, held_out: bool) -> str:
    if rng.random() < 0.15:
        return invented_word(rng, accents=0)
    return rng.choice(_LISTS.held_out_columns if held_out else _LISTS.columns)


def _name(rng: random.Random, held_out: bool) -> str:
    """A first and a last name, or a capitalized invented word for one of them."""
    first = WORDS.held_out_first_names if held_out else WORDS.first_names
    last = WORDS.held_out_last_names if held_out else WORDS.last_names
    words = [rng.choice(names).replace("'", "") for names in (first, last)]
    return " ".join(
        invented_word(rng, accents=0).capitalize() if rng.random() < 0.4 else word for word in words
    )


def _value(rng: random.Random, column: str, held_out: bool) -> str:
    """A value of the column: a name, a place that may end in the column's own name, a number."""
    chance = rng.random()
    if chance < 0.4:
        return _name(rng, held_out)
    if chance < 0.5:
        return str(rng.choice((rng.randint(1, 99), rng.randint(1800, 2030))))
    place = rng.choice(WORDS.held_out_cities if held_out else WORDS.cities)
    words = [place if rng.random() < 0.3 else invented_word(rng, accents=0)]
    words += [rng.choice(_LISTS.kinds)] * (rng.random() < 0.5)
    words += [rng.choice((column, column, rng.choice(_LISTS.columns)))] * (rng.random() < 0.7)
    value = " ".join(words)
    return value if rng.random() < 0.2 else value.lower()


def sql_query(rng: random.Random, held_out: bool = False) -> Sample:
    """One question about a random schema, and its query."""
    wanted = _acronym(rng, held_out) if rng.random() < 0.3 else _column(rng, held_out)
    known = wanted
    while known == wanted:
        known = _column(rng, held_out)
    value = _value(rng, known, held_out)
    table = f"table_name_{rng.randint(1, 99)}"
    shown = rng.choice((wanted, wanted.upper(), wanted.upper(), wanted.capitalize()))
    question = rng.choice(_LISTS.questions)
    for mark, text in (("{x}", wanted), ("{X}", shown), ("{y}", known), ("{v}", value)):
        question = question.replace(mark, text)
    first, second = (wanted, known) if rng.random() < 0.6 else (known, wanted)
    sample = Sample("sql")
    sample.add(f"{_LISTS.task}\n\n context: ")
    schema = sample.add(_LISTS.context.format(table=table, first=first, second=second))
    sample.add("\n\n question: ")
    asked = sample.add(question)
    sample.add(" [/user] [assistant]")
    said = sample.add(_LISTS.answer.format(x=wanted, table=table, y=known, v=value), 1.0)
    closing = sample.add("<|endoftext|>", 1.0)
    sample.answers.append(("sql", (said[0], closing[1])))
    if wanted in question:  # in other letters it must stay what it is
        sample.copied_from("column", wanted, asked, schema)
        sample.copied_from("column", wanted, said, schema)
    sample.copied_from("column", known, asked, schema)
    sample.copied_from("column", known, said, schema)
    sample.copied_from("value", value, said, asked)
    return sample
