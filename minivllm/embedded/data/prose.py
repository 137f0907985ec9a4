"""Plain English to continue, and short essays: built from sentence patterns written by hand."""

import random

from minivllm.embedded.data.facts import vary
from minivllm.embedded.data.lists import WORDS, load_lists
from minivllm.embedded.data.people import invented_word
from minivllm.embedded.data.phrases import plain_system
from minivllm.embedded.data.sample import Sample

_LISTS = load_lists(__package__, "prose")


def _choose(rng: random.Random, pattern: str) -> str:
    """Replace every [a/b/c] by one of its choices."""
    while "[" in pattern:
        before, rest = pattern.split("[", 1)
        choices, after = rest.split("]", 1)
        pattern = before + rng.choice(choices.split("/")) + after
    return pattern


def prose_text(rng: random.Random) -> Sample:
    """A short plain text, learnt from its first word on."""
    weights = [4 if number < 9 else 1 for number in range(len(_LISTS.texts))]
    text = _choose(rng, rng.choices(_LISTS.texts, weights)[0])
    while "{name}" in text:
        name = f"{rng.choice(WORDS.first_names)} {rng.choice(WORDS.last_names)}"
        text = text.replace("{name}", rng.choice((name, name.split()[0])), 1)
    job = rng.choice(WORDS.occupations).lower()
    text = text.replace("a {job}", f"{'an' if job[0] in 'aeiou' else 'a'} {job}")
    for mark, choices in (
        ("{city}", WORDS.cities),
        ("{country}", WORDS.countries),
        ("{thing}", _LISTS.things),
    ):
        text = text.replace(mark, rng.choice(choices))
    sample = Sample("prose")
    sample.add(text + "<|endoftext|>", 1.0)
    return sample


def essay_chat(rng: random.Random) -> Sample:
    """A request for an essay, and four paragraphs about its topic."""
    sample = Sample("essay")
    if rng.random() < 0.3:
        topic = " ".join(invented_word(rng, 0.01) for _ in range(rng.randint(1, 2)))
    else:
        topic = rng.choice(_LISTS.things + _LISTS.topics)
    if rng.random() < 0.4:
        sample.turn("system", plain_system(rng))
    asked = sample.turn("user", vary(rng, rng.choice(_LISTS.essay_requests)).replace("{t}", topic))
    paragraphs = [
        _choose(rng, rng.choice(part))
        .replace("{t}", topic)
        .replace("{T}", topic[0].upper() + topic[1:])
        for part in (_LISTS.opening, _LISTS.first, _LISTS.second, _LISTS.closing)
    ]
    said = sample.answer("\n\n".join(paragraphs))
    sample.copied_from("question", topic, said, asked)
    return sample
