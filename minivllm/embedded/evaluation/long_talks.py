"""Long conversations about tables, with other matters around them, to measure the model by.

Like `usual_tables.py`, this shares no code and no word list with the training text. Any columns
beside the name, text of all kinds around the table, five questions one after the other, put as
people put them in a chat.
"""

import random

from minivllm.embedded.data.sample import Sample
from minivllm.embedded.evaluation.usual_tables import COLUMNS, IN_WORDS, drawn_person, drawn_table

_FIRST = (
    "Eleanor Dmitriy Salome Fergus Anouk Lysander Precious Tadeusz Ottilie Rowan Ximena Cosmo "
    "Blessing Hamish Perpetua Zebedee Calliope Ignatius Maeve Thurston Wilhelm Josephine Arvid "
    "Quentin Ramona Sheldon Tabitha Ulrich Verity Wyatt"
).split()
_ABSENT = ("Gretel Osei", "Milton Vance", "Suki Aldridge", "Rupert Oyelaran")
_BEFORE = (
    "It is Monday the 14th, the office opens at 9:30 and closes at 18:00. Mrs. Holm is on leave.",
    "You are Nora, the assistant of a yoga studio. Never give medical advice.",
    "Export of 2024-03-08, made by the nightly job; 3 warnings, 0 errors.",
    "Dear assistant, I paste here what I got from Ravindra in accounting. Sorry for the format!",
    "System: strict mode. Reply in English, keep it short, and stay friendly at all times.",
)
_AFTER = (
    "",
    "Rows may be out of date. Ask Ravindra if in doubt, phone 100.",
    "End of file.",
    "Remember: one sentence is enough, no lists, no tables.",
)
_QUESTIONS = {
    "ID": ("What ID does {} have?", "Can you find the ID of {}?"),
    "Age": ("Hi, how old is {}?", "And the age of {}?", "Could you tell me how old {} is?"),
    "Occupation": ("What does {} do?", "Do you know what {} does for a living?", "{}'s job?"),
    "Country": ("Where is {} from?", "What country does {} come from?", "And {}'s country?"),
    "Email": ("I need to write to {}. Which email?", "What's {}'s email address?"),
    "Phone Number": ("How can I call {}?", "What's the phone number for {}, please?"),
    "Address": ("What's {}'s address?", "At what address does {} live?", "The address of {}?"),
}


def long_talk(rng: random.Random, rows: int, padded: bool) -> Sample:
    """Five questions about one table; one in eight is about somebody who is not in it."""
    some = rng.sample(COLUMNS, rng.randint(2, 7))
    columns = [column for column in COLUMNS if column in some or column == "Name"]
    asked = [column for column in columns if column != "Name"]
    firsts = rng.sample(_FIRST, rows)
    people = [drawn_person(rng, number, first) for number, first in enumerate(firsts, start=1)]
    table = drawn_table(people, columns, padded)
    sample = Sample("long talk")
    sample.turn("system", f"{rng.choice(_BEFORE)}\n\n{table}\n\n{rng.choice(_AFTER)}".rstrip())
    for _ in range(5):
        person, column = rng.choice(people), rng.choice(asked)
        absent = rng.random() < 1 / 8
        name = rng.choice(_ABSENT) if absent else person["Name"]
        cell = "not in the table" if absent else person[column]
        sample.turn("user", rng.choice(_QUESTIONS[column]).format(name))
        answer = f"The {IN_WORDS.get(column, column.lower())} of {name} is {cell}."
        sample.answer(answer, "missing" if absent else column)
    return sample
