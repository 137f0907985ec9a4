"""Tables and questions as people usually write them, to measure the model by.

This generator shares no code and no word list with the one that makes the training text
(``tables.py``): what it measures is not quite what was practised.
"""

import random

from minivllm.embedded.data.sample import Sample

COLUMNS = ("ID", "Name", "Age", "Occupation", "Country", "Email", "Phone Number", "Address")
_FIRST = (
    "Thandiwe Oddvar Xiomara Jolyon Saoirse Bartholomew Nkechi Evander Marisol Tobias Ingrid "
    "Caspian Leocadia Rashid Philippa Dashiell Yevgenia Auberon Solvei Kwame Henrietta Balthazar "
    "Odalys Percival Anneliese Cormac Delphine Ezekiel Florentina Gideon"
).split()
_LAST = (
    "Lindqvist Villanueva Mbeki Abernathy Okonkwo Featherstone Rasmussen Castellanos Whitlock "
    "Drummond Ferreira Hawthorne Szabo Ivanova"
).split()
_ABSENT = ("Zoltan Perkins", "Amara Linden", "Boris Quill")
_OCCUPATIONS = (
    "Carpenter,Botanist,Marine Biologist,Baker,Civil Engineer,Librarian,Veterinarian,Plumber,"
    "Surgeon,Graphic Designer,Electrician,Journalist"
).split(",")
_COUNTRIES = (
    "Norway,El Salvador,Portugal,Saudi Arabia,Vietnam,Chile,Ghana,Ireland,Czech Republic,"
    "Thailand,Peru,Morocco,Sri Lanka,Finland"
).split(",")
_STREETS = ("Oak St", "Elm Ave", "Maple Rd", "Pine St", "Cedar Ln", "Birch Dr")
_CITIES = ("Springfield, IL", "Toronto, ON", "London", "Sydney, NSW", "Berlin", "Kyoto")
_AROUND = (
    "You are a helpful assistant.\n\n{}",
    "{}\n\nAnswer questions about the people above.",
    "Below is our staff directory. Please use it to answer.\n{}\nBe brief.",
    "# Members\n{}",
    "The following table lists customers:\n\n{}\n\nOnly use this table.",
)
_QUESTIONS = {
    "ID": ("What is the ID of {}?",),
    "Age": ("What is the age of {}?", "How old is {}?"),
    "Occupation": ("What is the occupation of {}?", "What does {} do for a living?"),
    "Country": ("Which country is {} from?", "What is the country of {}?"),
    "Email": ("What is the email of {}?", "What is {}'s email?"),
    "Phone Number": ("What is {}'s phone number?", "What is the phone number of {}?"),
    "Address": ("What is the address of {}?", "Where does {} live?"),
}
IN_WORDS = {"ID": "ID", "Phone Number": "phone number"}


def drawn_person(rng: random.Random, number: int, first: str) -> dict[str, str]:
    last = rng.choice(_LAST)
    return {
        "ID": str(number),
        "Name": f"{first} {last}",
        "Age": str(rng.randint(18, 79)),
        "Occupation": rng.choice(_OCCUPATIONS),
        "Country": rng.choice(_COUNTRIES),
        "Email": f"{first}.{last}@example.com".lower(),
        "Phone Number": f"555-{rng.randint(0, 9999):04d}",
        "Address": f"{rng.randint(1, 999)} {rng.choice(_STREETS)}, {rng.choice(_CITIES)}",
    }


def drawn_table(people: list[dict[str, str]], columns: list[str], padded: bool) -> str:
    rows = [{column: column for column in columns}, *people]
    widths = {c: max(len(row[c]) for row in rows) if padded else 0 for c in columns}
    lines = ["| " + " | ".join(row[c].ljust(widths[c]) for c in columns) + " |" for row in rows]
    rule = "|" + "|".join("-" * (widths[c] + 2 if padded else 3) for c in columns) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def usual_conversation(rng: random.Random, rows: int, padded: bool) -> Sample:
    """Up to three questions about one table; one in eight is about somebody who is not in it."""
    some = rng.sample(COLUMNS, rng.randint(4, 8))
    columns = [column for column in COLUMNS if column in some or column == "Name"]
    people = [
        drawn_person(rng, i, first) for i, first in enumerate(rng.sample(_FIRST, rows), start=1)
    ]
    sample = Sample("usual table")
    sample.turn("system", rng.choice(_AROUND).format(drawn_table(people, columns, padded)))
    for _ in range(rng.randint(1, 3)):
        person = rng.choice(people)
        column = rng.choice([c for c in columns if c != "Name"])
        absent = rng.random() < 1 / 8
        name = rng.choice(_ABSENT) if absent else person["Name"]
        cell = "not in the table" if absent else person[column]
        sample.turn("user", rng.choice(_QUESTIONS[column]).format(name))
        answer = f"The {IN_WORDS.get(column, column.lower())} of {name} is {cell}."
        sample.answer(answer, "missing" if absent else column)
    return sample
