"""Long conversations about tables, with other matters around them, to measure the model by.

Like `usual_tables.py`, this shares no code and no word list with the training text. Any columns
beside the name, text of all kinds around the table, five questions one after the other, put as
people put them in a chat.
"""

import random

from minivllm.embedded.data.lists import load_lists
from minivllm.embedded.data.sample import Sample
from minivllm.lab.training.usual_tables import COLUMNS, ask_about, drawn_person, drawn_table

_LISTS = load_lists(__package__, "long_talks")


def long_talk(rng: random.Random, rows: int, padded: bool) -> Sample:
    """Five questions about one table."""
    some = rng.sample(COLUMNS, rng.randint(2, 7))
    columns = [column for column in COLUMNS if column in some or column == "Name"]
    asked = [column for column in columns if column != "Name"]
    firsts = rng.sample(_LISTS.first, rows)
    people = [drawn_person(rng, number, first) for number, first in enumerate(firsts, start=1)]
    table = drawn_table(people, columns, padded)
    sample = Sample("long talk")
    before = rng.choice(_LISTS.before)
    after = rng.choice(_LISTS.after)
    sample.turn("system", f"{before}\n\n{table}\n\n{after}".rstrip())
    ask_about(rng, sample, people, asked=asked, count=5, lists=_LISTS)
    return sample
