"""Evaluation suites: seeded conversations that training never saw, with the answers expected.

Tables hold people from the held-out lists or with invented names, and a part of the questions is
worded in ways that training does not use. The plain table suites are full of near misses (shared
first and last names, names built from rare pieces); the everyday ones are not.
The usual ones, and the long talks, are worded as most people would, by generators of their own.
"""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product

from minivllm.embedded.data.facts import capital_questions, capital_sentence
from minivllm.embedded.data.jsonfill import json_chat
from minivllm.embedded.data.lists import WORDS
from minivllm.embedded.data.sample import Sample
from minivllm.embedded.data.smalltalk import exchanges
from minivllm.embedded.data.tables import TableShape, table_conversation
from minivllm.embedded.data.tools import tool_chat
from minivllm.lab.training.long_talks import long_talk
from minivllm.lab.training.usual_tables import usual_conversation

Messages = list[dict[str, str]]
_TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>\n", re.DOTALL)


@dataclass(frozen=True)
class Case:
    """A prompt (chat messages, or plain text to continue) and the one right answer."""

    prompt: Messages | str
    expected: str
    label: str


def cases_of(sample: Sample) -> list[Case]:
    """One case per answer of a sample, with the turns before it as the prompt."""
    cases = []
    for label, (start, stop) in sample.answers:
        before = sample.text[:start]
        answer = sample.text[start:stop].removesuffix("<|im_end|>")
        if before.endswith("<|im_start|>assistant\n"):
            turns = _TURN.findall(before)
            prompt = [{"role": role, "content": content} for role, content in turns]
            cases.append(Case(prompt, answer, label))
        else:
            cases.append(Case(before.rstrip(), answer, label))
    return cases


def _drawn(seed: str, count: int, draw: Callable[[random.Random], Sample]) -> list[Case]:
    """The first `count` cases of samples drawn one after the other."""
    cases: list[Case] = []
    number = 0
    while len(cases) < count:
        cases += cases_of(draw(random.Random(f"{seed}-{number}")))
        number += 1
    return cases[:count]


def _practised(rng: random.Random, rows: int, padded: bool, **kind) -> Sample:
    """Three questions about a table of six to eight columns, as in training but held out."""
    shape = TableShape(
        (rows, rows), (6, 8), (3, 3), padded_share=float(padded), held_out=True, **kind
    )
    return table_conversation(rng, shape)


TABLES: dict[str, tuple[str, Callable[..., Sample]]] = {  # by name: in a suite's name, and a draw
    "usual": ("usual table", usual_conversation),
    "talk": ("long talk on a table", long_talk),
    "table": ("table", _practised),
    # real names from the held-out lists, which are rarely shared
    "everyday": ("everyday table", partial(_practised, invented=0.0, everyday=True)),
}


def table_cases(kind: str, seed: str, rows: int, padded: bool, count: int) -> list[Case]:
    """Questions about tables of one of the ``TABLES``, of this size."""
    _, draw = TABLES[kind]
    return _drawn(f"{seed}-{kind}-{rows}-{padded}", count, lambda rng: draw(rng, rows, padded))


def capital_cases(seed: str, count: int) -> list[Case]:
    """Every country, asked in a random way."""
    rng = random.Random(f"{seed}-capital")
    cases = []
    while len(cases) < count:
        for country in WORDS.capitals:
            question = rng.choice(capital_questions(country))
            messages = [{"role": "user", "content": question}]
            cases.append(Case(messages, capital_sentence(country), "capital"))
    return cases[:count]


def all_suites(seed: str, count: int) -> dict[str, list[Case]]:
    """All suites by name, those that are drawn at random with `count` cases each."""
    sizes = {
        "usual": [*product((3, 10, 30), (False, True))],
        "talk": [(3, False), (10, True), (30, True)],
    }
    asked = [(size, kind) for kind in sizes for size in sizes[kind]]
    asked += product(product((3, 10, 20, 30), (False, True)), ("table", "everyday"))
    suites = {}
    for (rows, padded), kind in asked:
        name = f"{TABLES[kind][0]}, {rows} rows, {'padded' if padded else 'unpadded'}"
        suites[name] = table_cases(kind, seed, rows, padded=padded, count=count)
    suites["capital, chat"] = capital_cases(seed, max(count, len(WORDS.capitals)))
    suites["capital, text"] = [  # to continue; scored up to the full stop
        Case(f"The capital of {country} is", f" {capital}.", "capital text")
        for country, capital in WORDS.capitals.items()
    ]
    suites["small talk"] = [  # as each is usually put
        Case([{"role": "user", "content": requests[0]}], answer, "small talk")
        for requests, answer in exchanges()
    ]
    suites["tool call"] = _drawn(f"{seed}-tool", count, lambda rng: tool_chat(rng, held_out=True))
    suites["json"] = _drawn(f"{seed}-json", count, lambda rng: json_chat(rng, held_out=True))
    return suites
