"""Cases that measure the adapters, none of which their training has seen."""

import random
from dataclasses import replace

from minivllm.embedded.data.facts import capital_questions, capital_sentence
from minivllm.embedded.data.pirate import (
    HELD_OUT_COUNTRIES,
    HELD_OUT_EXCHANGES,
    SMALL_TABLE,
    in_pirate_talk,
)
from minivllm.embedded.data.sample import Sample
from minivllm.embedded.data.sql import sql_query
from minivllm.embedded.data.tables import table_conversation

UNSEEN_TABLE = replace(SMALL_TABLE, held_out=True)


def _exchange(question: str, answer: str, label: str) -> Sample:
    sample = Sample(label)
    sample.turn("user", question)
    sample.answer(answer)
    return in_pirate_talk(sample)


def _pirate_samples() -> list[Sample]:
    """Countries and small talk that are held out, and tables of people that are."""
    rng = random.Random("pirate")
    samples = [
        _exchange(question, capital_sentence(country), "capital")
        for country in HELD_OUT_COUNTRIES
        for question in rng.sample(capital_questions(country), 3)
    ]
    samples += [
        _exchange(question, answer, "small talk")
        for questions, answer in HELD_OUT_EXCHANGES
        for question in questions[:2]
    ]
    tables = (table_conversation(rng, UNSEEN_TABLE) for _ in range(10))
    return samples + [in_pirate_talk(table) for table in tables]


def unseen_samples(name: str) -> list[Sample]:
    """The samples for an adapter, each with answers that are scored."""
    if name == "pirate":
        return _pirate_samples()
    return [sql_query(random.Random(f"unseen-{n}"), held_out=True) for n in range(150)]
