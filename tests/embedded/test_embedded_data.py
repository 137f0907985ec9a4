"""The embedded model's training text: what it keeps to, and that it stays the same to the byte.

The digests were taken when the word lists still were Python. Edits that are to change the text
change them, and a training will read something else.
"""

import hashlib
import random
from collections.abc import Iterable

import pytest

from minivllm.embedded.data.corpus import OTHER_SKILLS, samples
from minivllm.embedded.data.jsonfill import json_chat
from minivllm.embedded.data.lists import WORDS
from minivllm.embedded.data.sample import Sample
from minivllm.embedded.data.tables import TableShape, table_conversation
from minivllm.embedded.data.tools import tool_chat
from minivllm.lab.training.curriculum import FULL_PLAN, QUICK_PLAN
from minivllm.lab.training.suites import all_suites, cases_of

SEEDS = (0, 1, "evaluation")


def digest(parts: Iterable[object]) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of what the parts look like."""
    return hashlib.sha256("".join(map(repr, parts)).encode()).hexdigest()[:16]


def everything_in(sample: Sample) -> tuple:
    """Text, loss weights, pointers and answers of a sample, without the names of its classes."""
    copies = [(copy.kind, copy.target, copy.source, copy.closes) for copy in sample.copies]
    gathers = [(gather.kind, gather.target, gather.source) for gather in sample.gathers]
    return (sample.skill, sample.text, sample.learnt, copies, gathers, sample.rows, sample.answers)


STAGES = {
    "2-4 rows": "9b3a5e67439eb31f",
    "2-8 rows": "e82bc67eb54bee9e",
    "2-12 rows": "12101ff8413cb3ae",
    "2-30 rows": "e34f55ddec161ee8",
    "mostly 12-30 rows": "cf49bb2cbc7ea46a",
    "quick": "ff5b3d1e00834ba1",
}


@pytest.mark.parametrize("stage", [*FULL_PLAN.stages, *QUICK_PLAN.stages], ids=lambda s: s.name)
def test_the_text_of_a_stage(stage):
    drawn = []
    for seed in SEEDS:
        source = samples(stage.mixture, f"{seed}-{stage.name}")
        drawn += [everything_in(next(source)) for _ in range(40)]
    assert digest(drawn) == STAGES[stage.name]


SKILLS = {
    "capital": "6ad585b9cde5612f",
    "capital text": "499ab6d5c54a52bc",
    "small talk": "940f124aef33d36c",
    "prose": "8a1f373c294280d4",
    "essay": "12bd046aa2c590b0",
    "tool": "a88ab074a653d450",
    "json": "f11dbb3fedabe588",
}


@pytest.mark.parametrize("skill", SKILLS)
def test_the_text_of_a_skill(skill):
    """Each way to say something is drawn now and then: 300 samples of each seed."""
    draw = OTHER_SKILLS[skill]
    rngs = (random.Random(f"{seed}-{number}") for seed in SEEDS for number in range(300))
    assert digest(everything_in(draw(rng)) for rng in rngs) == SKILLS[skill]


def test_the_text_that_training_never_sees():
    rngs = [random.Random(f"held out {number}") for number in range(100)]
    drawn = [draw(rng, held_out=True) for rng in rngs for draw in (tool_chat, json_chat)]
    assert digest(map(everything_in, drawn)) == "b36bc6efecd61744"


SUITES = {
    "evaluation": "a13b71e7ef4f0bce",
    "test": "9876f3329325b4e7",
}


@pytest.mark.parametrize("seed", SUITES)
def test_the_cases_of_all_suites(seed):
    suites = all_suites(seed, 20)
    cases = [(name, c.prompt, c.expected, c.label) for name, all in suites.items() for c in all]
    assert digest(cases) == SUITES[seed]


def first_texts(mixture, seed, count=40):
    source = samples(mixture, seed)
    return [next(source).text for _ in range(count)]


@pytest.mark.parametrize("stage", FULL_PLAN.stages, ids=lambda stage: stage.name)
def test_same_seed_gives_same_text_and_another_seed_another(stage):
    once, again, other = (first_texts(stage.mixture, seed) for seed in (1, 1, "evaluation"))
    assert once == again
    assert not {text for text in once if "\n|" in text} & set(other)


def test_held_out_names_are_not_in_the_training_text():
    text = "".join(first_texts(FULL_PLAN.stages[-1].mixture, 5, count=100))
    names = set(WORDS.held_out_last_names) - set(WORDS.streets)
    assert not [name for name in names if f" {name} " in text]


def test_there_are_sixty_capitals():
    assert len(WORDS.capitals) == 60


@pytest.mark.parametrize("seed", range(20))
def test_an_answer_holds_its_cell_and_the_name(seed):
    shape = TableShape(rows=(3, 12), questions=(5, 5))
    for case in cases_of(table_conversation(random.Random(seed), shape)):
        if case.label == "small talk":
            continue
        assert case.expected.startswith("The ")
        assert case.expected.endswith(".")
        if case.label == "missing":
            assert case.expected.endswith(" is not in the table.")
        else:
            assert " is " in case.expected


def test_copies_repeat_their_source():
    for seed in range(20):
        for draw in OTHER_SKILLS.values():
            sample = draw(random.Random(seed))
            for copy in sample.copies:
                assert sample.text[slice(*copy.target)] == sample.text[slice(*copy.source)]
