"""Phrases around a table: questions for a cell, prompts, and filler words.

People rarely ask in the words one has practised. So a part of the training text has arbitrary
words before a question, right behind the name, and around the table: the model must tell by the
table where a name ends, not by the word that follows.
"""

import random

from minivllm.embedded.data.lists import WORDS, load_lists
from minivllm.embedded.data.people import invented_word

_QUESTIONS = load_lists(__package__, "questions")
_COLUMNS = load_lists(__package__, "columns")
_AROUND = load_lists(__package__, "surroundings")
ANSWER_WORDS: dict[str, str] = _COLUMNS.answer_words
PLAIN_LABELS: list[list[str]] = _QUESTIONS.plain_labels


def word(rng: random.Random) -> str:
    """A common word, or one that does not exist."""
    return rng.choice(_AROUND.common_words) if rng.random() < 0.75 else invented_word(rng, 0.02)


def some_words(rng: random.Random, most: int) -> str:
    """Words in a row, which say nothing."""
    return " ".join(word(rng) for _ in range(rng.randint(1, most)))


def sentence(rng: random.Random) -> str:
    """A filler sentence; it may hold a person's name."""
    said = some_words(rng, 9)
    if rng.random() < 0.25:
        name = f"{rng.choice(WORDS.first_names)} {rng.choice(WORDS.last_names)}"
        said += f" {name}" + rng.choice(("", f" {some_words(rng, 4)}"))
    if rng.random() < 0.15:
        said += f" {rng.randint(1, 2000)}"
    return said[0].upper() + said[1:] + rng.choice((".", ".", ".", "!", "?", ":"))


def sentences(rng: random.Random, most: int) -> str:
    return " ".join(sentence(rng) for _ in range(rng.randint(1, most)))


def around_name(rng: random.Random, template: str) -> str:
    """Put words, or marks, next to the ``{n}`` of a question; behind it, if the clause allows."""
    before, behind = template.split("{n}", 1)
    chance = rng.random()
    if chance < 0.2:
        return f"{before}{rng.choice(_AROUND.marks)}{behind}"
    if chance < 0.3 and before:
        return f"{before}{rng.choice(_AROUND.before_name)}{{n}}{behind}"
    if behind.startswith("'s"):
        return template
    put = rng.choice(_AROUND.behind_name) if rng.random() < 0.45 else f" {some_words(rng, 3)}"
    if len(behind) <= len(" has?") and rng.random() < 0.5:
        behind = rng.choice(("?", ".", "", " ?"))
    return f"{before}{{n}}{put}{behind}"


def word_of(rng: random.Random, column: str) -> str:
    """A word that people use for this column."""
    return rng.choice(_COLUMNS.column_words[column])


def question(rng: random.Random, column: str, name: str, held_out: bool = False) -> str:
    """One way to ask for this column of this person, with or without words around it."""
    if held_out and rng.random() < 0.3:
        template = _COLUMNS.held_out[column]
    elif (chance := rng.random()) < 0.2:
        frame = rng.choice(_QUESTIONS.frames)
        if not held_out and rng.random() < 0.3:
            frame = some_words(rng, 4) + rng.choice((" {q}?", " {q}", ", {q}?", " {q}."))
        template = frame.replace("{q}", rng.choice(_COLUMNS.clauses[column]))
    elif chance < 0.55:
        template = rng.choice(_COLUMNS.direct[column])
    else:
        template = rng.choice(_QUESTIONS.generic).replace("{c}", word_of(rng, column))
    if not held_out and rng.random() < 0.2:
        template = around_name(rng, template)
    chance = rng.random()
    if chance < 0.15:
        template = template.lower()
    elif chance < 0.3 and template[0] != "{":
        before = rng.choice(_QUESTIONS.before) if rng.random() < 0.8 else sentence(rng) + " "
        first = template[0].lower() if before.endswith((", ", ": ", "And ", "So ")) else template[0]
        template = before + first + template[1:]
    else:
        template = template[0].upper() + template[1:]
    chance = rng.random()
    if chance < 0.05:
        template = template.rstrip("?.")
    elif chance < 0.1:
        template += rng.choice(_QUESTIONS.after)
    elif chance < 0.12:
        template += f" {sentence(rng)}"
    elif chance < 0.18:
        label = rng.choice((" Your answer: The", " Answer: The", " Your answer:"))
        restated = f" {ANSWER_WORDS[column]} of {{n}} is "
        template += label + restated if label.endswith("The") else label
    return template.replace("{n}", name)


def table_opening(rng: random.Random) -> str:
    """Text before a table, up to the line break before its first row."""
    parts = []
    if rng.random() < 0.8:
        parts.append(rng.choice(_AROUND.roles))
    if rng.random() < 0.75:
        parts.append(rng.choice(_AROUND.announcements))
    if rng.random() < 0.25:
        parts.insert(rng.randint(0, len(parts)), sentences(rng, 3))
    text = rng.choice((" ", " ", "\n", "\n\n")).join(parts)
    if rng.random() < 0.5:
        text += ("\n" if text else "") + rng.choice(_AROUND.headings)
    return text + rng.choice(("\n", "\n", "\n\n")) if text else ""


def table_closing(rng: random.Random) -> str:
    """Text after a table; often empty."""
    if rng.random() < 0.6:
        return ""
    closing = rng.sample(_AROUND.closings, rng.randint(1, 2))
    if rng.random() < 0.3:
        closing.insert(rng.randint(0, len(closing)), sentences(rng, 3))
    return rng.choice(("", "\n")) + " ".join(closing)


def plain_system(rng: random.Random) -> str:
    """A system prompt without a table."""
    return rng.choice(_AROUND.plain_systems)
