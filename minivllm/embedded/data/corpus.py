"""The training text as a whole: an endless seeded mixture of all skills."""

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from minivllm.embedded.data.facts import capital_chat, capital_text
from minivllm.embedded.data.jsonfill import json_chat
from minivllm.embedded.data.prose import essay_chat, prose_text
from minivllm.embedded.data.sample import Sample
from minivllm.embedded.data.smalltalk import small_talk
from minivllm.embedded.data.tables import TableShape, table_conversation
from minivllm.embedded.data.tools import tool_chat

OTHER_SKILLS: dict[str, Callable[[random.Random], Sample]] = {
    "capital": capital_chat,
    "capital text": capital_text,
    "small talk": small_talk,
    "prose": prose_text,
    "essay": essay_chat,
    "tool": tool_chat,
    "json": json_chat,
}


@dataclass(frozen=True)
class Mixture:
    """Samples of a stage of training: table shapes and skills, each with its share."""

    shapes: tuple[tuple[TableShape, float], ...]
    others: dict[str, float] = field(default_factory=dict)

    def draw(self, rng: random.Random) -> Sample:
        """One random sample."""
        options = [*(shape for shape, _ in self.shapes), *self.others]
        shares = [*(share for _, share in self.shapes), *self.others.values()]
        chosen = rng.choices(options, shares)[0]
        if isinstance(chosen, TableShape):
            return table_conversation(rng, chosen)
        return OTHER_SKILLS[chosen](rng)


def samples(mixture: Mixture, seed: int | str) -> Iterator[Sample]:
    """Endless samples; the same seed gives the same text."""
    rng = random.Random(seed)
    while True:
        yield mixture.draw(rng)


def fingerprint(mixture: Mixture, seed: int | str, count: int = 200) -> str:
    """A hash of the first samples' text: it changes whenever the training text does."""
    digest = hashlib.sha256()
    source = samples(mixture, seed)
    for _ in range(count):
        digest.update(next(source).text.encode())
    return digest.hexdigest()
