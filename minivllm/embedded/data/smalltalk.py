"""Greetings, questions about the model itself, and honest answers to what it cannot do."""

import random

from minivllm.embedded.data.facts import vary
from minivllm.embedded.data.lists import load_lists
from minivllm.embedded.data.people import Population, invented_word
from minivllm.embedded.data.phrases import plain_system
from minivllm.embedded.data.sample import Sample

_LISTS = load_lists(__package__, "smalltalk")
UNKNOWN_ANSWER = _LISTS.unknown_answer


def exchanges() -> list[tuple[list[str], str]]:
    """All known exchanges: the ways to say something and its answer."""
    return [(known["requests"], known["answer"]) for known in _LISTS.exchanges]


def _fill(rng: random.Random, request: str) -> str:
    def thing() -> str:
        return rng.choice(_LISTS.common_things) if rng.random() < 0.5 else invented_word(rng)

    for mark, draw in (
        ("{w}", thing),
        ("{W}", lambda: invented_word(rng).capitalize()),
        ("{n}", lambda: str(rng.randint(2, 2000))),
    ):
        while mark in request:
            request = request.replace(mark, draw(), 1)
    return request


def small_exchange(rng: random.Random, sample: Sample) -> None:
    """Add one known exchange to a conversation."""
    requests, answer = rng.choice(exchanges())
    sample.turn("user", rng.choice(requests))
    sample.answer(answer, "small talk")


def small_talk(rng: random.Random) -> Sample:
    """One to three exchanges; one in four is a request that is beyond the model."""
    sample = Sample("small talk")
    if rng.random() < 0.4:
        sample.turn("system", plain_system(rng))
    for _ in range(rng.randint(1, 3)):
        chance = rng.random()
        if chance < 0.2:
            request = _fill(rng, rng.choice(_LISTS.unknown))
            answer = UNKNOWN_ANSWER
        elif chance < 0.27:
            name = Population(rng, 0.3).name()
            greeting = rng.choice(("My name is {n}.", "I am {n}.", "Hi, I am {n}.",
                                   "Hello, my name is {n}."))  # fmt: skip
            request = greeting.format(n=name)
            answer = f"Nice to meet you, {name}."
        else:
            requests, answer = rng.choice(exchanges())
            request = rng.choice(requests)
            name = None
        asked = sample.turn("user", request if chance < 0.27 else vary(rng, request))
        said = sample.answer(answer)
        if 0.2 <= chance < 0.27:
            sample.copied_from("question", name, said, asked)
    return sample
