"""Cases that measure the embedder and the classifier, in names and wordings they have not seen."""

import random
from dataclasses import dataclass

from minivllm.embedded.data.lists import WORDS, load_lists
from minivllm.embedded.data.people import Population
from minivllm.embedded.data.phrases import ANSWER_WORDS
from minivllm.embedded.data.sentences import ASKED

_UNSEEN = load_lists(__package__, "unseen_sentences")
OTHERS = 8
"""People besides the one that a paraphrase is about."""


@dataclass(frozen=True)
class Search:
    """A text, and candidates: the first of them is the one to be found."""

    text: str
    candidates: list[str]


def _people(rng: random.Random, count: int) -> list[dict[str, str]]:
    return Population(rng, invented=0.0, held_out=True, everyday=True).people(count)


def _ask(rng: random.Random, column: str, person: dict[str, str]) -> str:
    return rng.choice(_UNSEEN.questions[column]).replace("{n}", person["Name"])


def _tell(rng: random.Random, column: str, person: dict[str, str]) -> str:
    template = rng.choice(_UNSEEN.statements[column])
    return template.replace("{n}", person["Name"]).replace("{v}", person[column])


def paraphrase(rng: random.Random) -> Search:
    """Find a question's other wording among 23: same person, same column, or neither."""
    person, *others = _people(rng, 1 + OTHERS)
    column = rng.choice(ASKED)
    asked, again = rng.sample(_UNSEEN.questions[column], 2)
    candidates = [again.replace("{n}", person["Name"])]
    candidates += [_ask(rng, other, person) for other in ASKED if other != column]
    candidates += [_ask(rng, column, other) for other in others]
    candidates += [_ask(rng, rng.choice(ASKED), other) for other in others]
    return Search(asked.replace("{n}", person["Name"]), candidates)


def retrieval(rng: random.Random) -> Search:
    """Find the sentence that answers among 28: 7 columns of 4 people."""
    people = _people(rng, 4)
    wanted = rng.choice(ASKED)
    columns = [wanted, *(column for column in ASKED if column != wanted)]
    candidates = [_tell(rng, column, person) for person in people for column in columns]
    return Search(_ask(rng, wanted, people[0]), candidates)


def searches(count: int = 150) -> dict[str, list[Search]]:
    """The cases of both kinds, the same in every call."""
    return {
        draw.__name__: [draw(random.Random(f"{draw.__name__}-{n}")) for n in range(count)]
        for draw in (paraphrase, retrieval)
    }


def _request(rng: random.Random, kind: str) -> str:
    """A request of this kind in words that training does not use."""
    (person,) = _people(rng, 1)
    column = rng.choice(ASKED)
    if kind == "table":
        return _ask(rng, column, person)
    template = rng.choice(_UNSEEN.requests[kind])
    for mark, text in (
        ("{c}", rng.choice(sorted(WORDS.capitals))),
        ("{p}", rng.choice(WORDS.held_out_cities)),
        ("{k}", f"name and {ANSWER_WORDS[column]}"),
        ("{s}", _tell(rng, column, person)),
    ):
        template = template.replace(mark, text)
    return template


def unseen_requests(kinds: tuple[str, ...], count: int = 50) -> list[tuple[str, str]]:
    """Requests with their kind, `count` of each, the same in every call."""
    return [
        (_request(random.Random(f"{kind}-{n}"), kind), kind) for kind in kinds for n in range(count)
    ]
