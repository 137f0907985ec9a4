"""Words that stand around a question or a table and do not matter.

People rarely ask in the words one has practised. So a part of the training text has arbitrary
words before a question, right behind the name, and around the table: the model must tell by the
table where a name ends, not by the word that follows.
"""

import random

from minivllm.embedded.data import words
from minivllm.embedded.data.people import invented_word

_COMMON = """
able about above across actually after again all almost alone along already also although always
among and another any around as at away back be because been before behind below best better
between both but by call came can case certain clearly come could currently day did different
directly does done down during each early either else end enough even ever every exactly far
feel few find first for form found from further gave general get given go good got great group
had half hand has have he head held help her here high him his home how however if in indeed
into it its just keep kind knew know large last late later least left less let life like likely
line little long look lots made main make many may me mean meant more most much must my name near
nearly need never new next no nor not nothing now of off often on once one only open or order
other our out over own part people perhaps place please point possible possibly present probably
put quite rather read really recently right said same saw say second see seem seemed seems set
several shall she should show side simply since small so some something soon still such sure
take than that the their them then there these they thing things think this those though three
through time to today together too took toward tried two under until up upon us use used usually
very want was way we well went were what when where whether which while who whole whose why will
with within without word work would writes year yes yet you young your
""".split()

_BEHIND_NAME = (
    " now", " today", " these days", " at present", " at the moment", " really", " actually",
    " currently", " here", " exactly", " again", " there", " could be", " must be", " used to be",
    " seems to be", " is said to be", " in this list", " in the table", " above", " by now",
    " (see the table)", ", please", ", by the way", ", roughly", ", if it is there",
    ", as far as you know", " - quickly", ", my dear", " from the list", " according to the list",
    ", thanks", " please", " then", " nowadays", " as of today", " for me", " if possible",
)  # fmt: skip

_BEFORE_NAME = (
    "our colleague ", "my friend ", "the customer ", "a certain ", "user ", "the person named ",
    "somebody called ", "dear ", "the member ", "our guest ", "employee ", "this ", "old ",
    "my neighbor ", "a person called ", "the one named ",
)  # fmt: skip

_MARKS = ('"{n}"', "'{n}'", "**{n}**", "({n})", "“{n}”", "`{n}`", "_{n}_", "[{n}]")


def word(rng: random.Random) -> str:
    """A common word, or one that does not exist."""
    return rng.choice(_COMMON) if rng.random() < 0.75 else invented_word(rng, 0.02)


def some_words(rng: random.Random, most: int) -> str:
    """Words in a row, which say nothing."""
    return " ".join(word(rng) for _ in range(rng.randint(1, most)))


def sentence(rng: random.Random) -> str:
    """A sentence without a meaning; somebody's name may be in it."""
    said = some_words(rng, 9)
    if rng.random() < 0.25:
        name = f"{rng.choice(words.FIRST_NAMES)} {rng.choice(words.LAST_NAMES)}"
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
        return f"{before}{rng.choice(_MARKS)}{behind}"
    if chance < 0.3 and before:
        return f"{before}{rng.choice(_BEFORE_NAME)}{{n}}{behind}"
    if behind.startswith("'s"):
        return template
    put = rng.choice(_BEHIND_NAME) if rng.random() < 0.45 else f" {some_words(rng, 3)}"
    if len(behind) <= len(" has?") and rng.random() < 0.5:
        behind = rng.choice(("?", ".", "", " ?"))
    return f"{before}{{n}}{put}{behind}"
