"""Capitals, as chat and as plain continuation, and a little about the model itself."""

import random

from minivllm.embedded.data.prompts import plain_system
from minivllm.embedded.data.sample import Sample
from minivllm.embedded.data.words import CAPITALS

_CAPITAL_QUESTIONS = """
What is the capital of {c}?
What is the capital of {c}?
What is the capital of {c}?
What's the capital of {c}?
What is the capital city of {c}?
What is {c}'s capital?
Which city is the capital of {c}?
Tell me the capital of {c}.
Name the capital of {c}.
Do you know the capital of {c}?
Can you tell me the capital of {c}?
Can you name the capital of {c}?
Could you tell me what the capital of {c} is?
Please tell me the capital of {c}.
I would like to know the capital of {c}.
What city is the capital of {c}?
The capital of {c}?
Capital of {c}?
Which is the capital of {c}?
Give me the capital of {c}.
What is the name of the capital of {c}?
The capital of {c} is
The capital of {c} is which city?
Which capital does {c} have?
What do you call the capital of {c}?
In one sentence: what is the capital of {c}?
""".strip().splitlines()

_SHORT_FORMS = {
    "the United States": ("the USA", "the US", "the United States of America", "America"),
    "the United Kingdom": ("the UK", "Great Britain", "Britain", "England"),
    "the Democratic Republic of the Congo": ("the DR Congo", "the Congo"),
}


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
    return f"The capital of {country} is {CAPITALS[country]}."


def capital_questions(country: str) -> list[str]:
    """Every known way to ask for this country's capital."""
    return [template.replace("{c}", country) for template in dict.fromkeys(_CAPITAL_QUESTIONS)]


def capital_chat(rng: random.Random) -> Sample:
    """One to four questions about capitals."""
    sample = Sample("capital")
    if rng.random() < 0.4:
        sample.turn("system", plain_system(rng))
    for country in rng.sample(sorted(CAPITALS), rng.randint(1, 4)):
        asked = rng.choice((*_SHORT_FORMS.get(country, ()), country, country))
        question = rng.choice(_CAPITAL_QUESTIONS).replace("{c}", asked)
        sample.turn("user", vary(rng, question))
        sample.answer(capital_sentence(country))
    return sample


def capital_text(rng: random.Random) -> Sample:
    """Plain sentences `The capital of France is Paris.`, alone or a few in a row."""
    sample = Sample("capital text")
    for country in rng.sample(sorted(CAPITALS), rng.choice((1, 1, 2, 3))):
        sentence = capital_sentence(country)
        if sample.text:
            sample.add(" ", 1.0)
        sample.add(sentence, 1.0)
    sample.add("<|endoftext|>", 1.0)
    return sample
