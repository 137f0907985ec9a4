"""Pirate talk, for the `pirate` adapter: the model's own conversations with other answers."""

import random
import re
from collections.abc import Callable

from minivllm.embedded.data.facts import capital_chat
from minivllm.embedded.data.lists import WORDS, load_lists
from minivllm.embedded.data.sample import Sample
from minivllm.embedded.data.smalltalk import exchanges, small_talk
from minivllm.embedded.data.tables import TableShape, table_conversation

_LISTS = load_lists(__package__, "pirate")
HELD_OUT_COUNTRIES = sorted(WORDS.capitals)[4::5]
HELD_OUT_EXCHANGES = exchanges()[3::4]
SMALL_TABLE = TableShape((2, 4), (2, 4), (2, 3))


def pirate(answer: str) -> str:
    """The same answer, as a pirate says it."""
    said = re.sub(r"\w+", lambda word: _LISTS.words.get(word[0], word[0]), answer)
    return _LISTS.before + said


def in_pirate_talk(sample: Sample) -> Sample:
    """The same conversation with a pirate; what was learnt beside answers is only read."""
    talk = Sample(sample.skill)
    end = 0
    for _, (start, stop) in sample.answers:
        talk.add(sample.text[end:start])
        said = talk.add(pirate(sample.text[start:stop]), 1.0)
        talk.answers.append((sample.skill, said))
        end = stop
    talk.add(sample.text[end:])
    return talk


def _is_held_out(sample: Sample) -> bool:
    kept = HELD_OUT_COUNTRIES + [answer for _, answer in HELD_OUT_EXCHANGES]
    return any(text in sample.text for text in kept)


def _unlike_held_out(rng: random.Random, draw: Callable[[random.Random], Sample]) -> Sample:
    """A sample without anything that is held out (tables have small talk between questions)."""
    while _is_held_out(sample := draw(rng)):
        pass
    return in_pirate_talk(sample)


def pirate_capitals(rng: random.Random) -> Sample:
    """Questions for the capitals of countries that are not held out."""
    return _unlike_held_out(rng, capital_chat)


def small_table(rng: random.Random) -> Sample:
    return table_conversation(rng, SMALL_TABLE)


def pirate_talk(rng: random.Random) -> Sample:
    """Capitals, small talk, and questions about a small table."""
    draw = rng.choices((capital_chat, small_talk, small_table), (0.3, 0.5, 0.2))[0]
    return _unlike_held_out(rng, draw)
