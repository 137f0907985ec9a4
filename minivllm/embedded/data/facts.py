"""Capitals, as chat and as plain continuation, and a little about the model itself."""

import random

from minivllm.embedded.data.lists import WORDS, load_lists
from minivllm.embedded.data.phrases import plain_system
from minivllm.embedded.data.sample import Sample

_LISTS = load_lists(__package__, "facts")


def vary(rng: random.Random, question: str) -> str:
    """The same request in lower case, without its mark, or with a polite word around it."""
    chance = rng.random()
    if chance < 0.1:
        return question.lower()
    if chance < 0.16:
        return question.rstrip("?.")
    if chance < 0.22:
        first = question[0].lower() if not question.startswith("I ") else "I"
        return rng.choice(("Hi, ", "Hello, ", "Please: ", "Hey, ", "So, ")) + first + question[1:]
    if chance < 0.27:
        return question + rng.choice((" Thanks!", " Please.", " Thank you.", " Be brief."))
    return question


def capital_sentence(country: str) -> str:
    return f"The capital of {country} is {WORDS.capitals[country]}."


def capital_questions(country: str) -> list[str]:
    """Every known way to ask for this country's capital."""
    return [
        template.replace("{c}", country) for template in dict.fromkeys(_LISTS.capital_questions)
    ]


def capital_chat(rng: random.Random) -> Sample:
    """One to four questions about capitals."""
    sample = Sample("capital")
    if rng.random() < 0.4:
        sample.turn("system", plain_system(rng))
    for country in rng.sample(sorted(WORDS.capitals), rng.randint(1, 4)):
        asked = rng.choice((*_LISTS.short_forms.get(country, ()), country, country))
        question = rng.choice(_LISTS.capital_questions).replace("{c}", asked)
        sample.turn("user", vary(rng, question))
        sample.answer(capital_sentence(country))
    return sample


def capital_text(rng: random.Random) -> Sample:
    """Plain sentences `The capital of France is Paris.`, alone or a few in a row."""
    sample = Sample("capital text")
    for country in rng.sample(sorted(WORDS.capitals), rng.choice((1, 1, 2, 3))):
        sentence = capital_sentence(country)
        if sample.text:
            sample.add(" ", 1.0)
        sample.add(sentence, 1.0)
    sample.add("<|endoftext|>", 1.0)
    return sample
