"""Pairs of texts that mean the same, or ask and answer: what the embedder learns from."""

import random
from dataclasses import dataclass

from minivllm.embedded.data.facts import capital_questions, capital_sentence, vary
from minivllm.embedded.data.lists import WORDS, load_lists
from minivllm.embedded.data.people import COLUMNS, Population
from minivllm.embedded.data.phrases import question, word_of
from minivllm.embedded.data.smalltalk import exchanges

_LISTS = load_lists(__package__, "sentences")
ASKED = tuple(column for column in COLUMNS if column != "Name")
LONGEST = 60
GROUP = 4
"""Pairs that are drawn together, each near to the others in words and far in meaning."""


@dataclass(frozen=True)
class Pair:
    """Two texts of one meaning; pairs with the same `meaning` are no counterexamples."""

    first: str
    second: str
    meaning: tuple[str, str]


def statement(rng: random.Random, column: str, person: dict[str, str]) -> str:
    """One way to tell this cell of a person."""
    template = rng.choice(_LISTS.own[column] + _LISTS.generic)
    template = template.replace("{c}", word_of(rng, column)).replace("{v}", person[column])
    return template.replace("{n}", person["Name"])


def asked_for(rng: random.Random, column: str, person: dict[str, str]) -> str:
    """One way to ask for this cell, without the longest ones: a batch is as long as its longest."""
    if rng.random() < 0.3:
        return rng.choice(_LISTS.asked[column]).replace("{n}", person["Name"])
    while len(text := question(rng, column, person["Name"])) > LONGEST + len(person["Name"]):
        pass
    return text


def _about_people(rng: random.Random) -> list[Pair]:
    """One person's cell, another one of it, the same of a second person, and any of that one."""
    people = Population(rng, invented=0.3).people(2)
    first, second = rng.sample(ASKED, 2)
    pairs = []
    for person, column in zip(
        (people[0], people[0], people[1], people[1]),
        (first, second, first, rng.choice([c for c in ASKED if c != first])),
        strict=True,
    ):
        tell = statement if rng.random() < 0.5 else asked_for
        first_text = asked_for(rng, column, person)
        second_text = tell(rng, column, person)
        pairs.append(Pair(first_text, second_text, (person["Name"], column)))
    return pairs


def _about_capitals(rng: random.Random) -> list[Pair]:
    pairs = []
    for country in rng.sample(sorted(WORDS.capitals), GROUP):
        asked, again = rng.sample(capital_questions(country), 2)
        other = capital_sentence(country) if rng.random() < 0.5 else vary(rng, again)
        pairs.append(Pair(vary(rng, asked), other, ("capital", country)))
    return pairs


def _small_talk(rng: random.Random) -> list[Pair]:
    pairs = []
    for requests, answer in rng.sample(exchanges(), GROUP):
        asked, again = rng.sample(requests, 2)
        pairs.append(Pair(asked, answer if rng.random() < 0.5 else again, ("talk", answer)))
    return pairs


def drawn_pairs(rng: random.Random, groups: int) -> list[Pair]:
    """``groups`` times four pairs, most of them about people."""
    draws = rng.choices((_about_people, _about_capitals, _small_talk), (0.8, 0.1, 0.1), k=groups)
    return [pair for draw in draws for pair in draw(rng)]
