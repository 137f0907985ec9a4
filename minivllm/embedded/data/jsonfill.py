"""Small JSON objects filled from a sentence: `Extract name and age as JSON: Maria is 34.`"""

import json
import random

from minivllm.embedded.data import asides
from minivllm.embedded.data.people import Population
from minivllm.embedded.data.prompts import plain_system
from minivllm.embedded.data.sample import Sample

# Key of the object -> the person's column, and clauses that tell it.
_FIELDS = {
    "name": ("Name", ()),
    "age": ("Age", ("is {v} years old", "is {v}", "is aged {v}", "turned {v} last week",
                    "is now {v} years old", "celebrated {v} years", "is {v} years of age",
                    "has just turned {v}", "will soon be older than {v}")),
    "occupation": ("Occupation", ("works as a {v}", "is a {v}", "is employed as a {v}",
                                  "has a job as a {v}", "became a {v}", "earns a living as a {v}",
                                  "is our new {v}", "has the job of {v}")),
    "country": ("Country", ("lives in {v}", "comes from {v}", "is from {v}", "was born in {v}",
                            "grew up in {v}", "is a citizen of {v}", "spent ten years in {v}")),
    "city": ("City", ("has a flat in {v}", "moved to {v}", "lives in the city of {v}",
                      "has an office in {v}", "works in {v}", "likes the city of {v}")),
    "email": ("Email", ("has the email address {v}", "can be reached at {v}",
                        "reads mail at {v}", "uses {v} for mail", "writes from {v}")),
    "phone": ("Phone Number", ("has the phone number {v}", "can be called at {v}",
                               "answers the phone at {v}")),
}  # fmt: skip

_REQUESTS = """
Extract {k} as JSON: {s}
Extract {k} as JSON from this sentence: {s}
Extract {k} as a JSON object: {s}
Extract the {k} as JSON: {s}
Give {k} as JSON: {s}
Return {k} as JSON. {s}
Write a JSON object with {k}: {s}
Make a JSON object with the keys {k} from this text: {s}
Read the sentence and answer with JSON that has {k}: {s}
{s} Give me {k} as JSON.
{s} Extract {k} as JSON.
{s} Answer with a JSON object with the keys {k}.
Fill a JSON object with {k}. Text: {s}
Generate a JSON with {k} for this person: {s}
Convert to JSON with the keys {k}: {s}
Turn this into JSON with {k}: {s}
Fill this JSON from the sentence. {j} Sentence: {s}
Fill in {j} from this text: {s}
Complete the JSON {j} for: {s}
{s} Fill in {j}
Use the form {j} for this person: {s}
Read: {s} Now fill the JSON object {j}
From the text "{s}" make a JSON object with {k}.
What are {k}? Answer as JSON. {s}
Here is a text: {s} Put {k} into JSON.
""".strip().splitlines()


def _join(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def json_chat(rng: random.Random, held_out: bool = False) -> Sample:
    """One request; the keys asked for come in the order of the request."""
    sample = Sample("json")
    population = Population(rng, rng.choice((0.0, 0.4, 0.8)), held_out)
    person = population.person(1)
    if rng.random() < 0.15:
        person["Name"] = person["Name"].split()[0]
    person["City"] = population.city()
    others = rng.sample([key for key in _FIELDS if key != "name"], rng.choice((1, 1, 2, 2, 3)))
    keys = ["name", *others]
    told = keys[1:]
    clauses = [rng.choice(_FIELDS[key][1]).format(v=person[_FIELDS[key][0]]) for key in told]
    sentence = f"{person['Name']} {_join(clauses)}."
    if rng.random() < 0.15:
        sentence += f" {asides.sentence(rng)}"
    if rng.random() < 0.1 and len(keys) > 2:
        keys = keys[:-1]
    if rng.random() < 0.15:
        rng.shuffle(keys)
    wanted = _join(keys) if rng.random() < 0.8 else ", ".join(keys)
    empty = rng.choice(('""', "...", "null", '"?"', '"..."'))
    form = "{" + ", ".join(f'"{key}": {empty}' for key in keys) + "}"
    request = rng.choice(_REQUESTS).format(k=wanted, s=sentence, j=form)
    if rng.random() < 0.3:
        sample.turn("system", plain_system(rng))
    asked = sample.turn("user", request)
    values = {key: person[_FIELDS[key][0]] for key in keys}
    content = json.dumps(
        {key: int(value) if key == "age" else value for key, value in values.items()},
        ensure_ascii=False,
    )
    said = sample.answer(content)
    for value in values.values():
        sample.copied_from("question", value, said, asked)
    return sample
