"""Small JSON objects filled from a sentence: `Extract name and age as JSON: Maria is 34.`"""

import json
import random

from minivllm.embedded.data import phrases
from minivllm.embedded.data.lists import load_lists
from minivllm.embedded.data.people import Population
from minivllm.embedded.data.sample import Sample

_LISTS = load_lists(__package__, "jsonfill")
_COLUMN = {key: field["column"] for key, field in _LISTS.fields.items()}
_CLAUSES = {key: field["clauses"] for key, field in _LISTS.fields.items()}


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
    others = rng.sample([key for key in _COLUMN if key != "name"], rng.choice((1, 1, 2, 2, 3)))
    keys = ["name", *others]
    told = keys[1:]
    clauses = [rng.choice(_CLAUSES[key]).format(v=person[_COLUMN[key]]) for key in told]
    sentence = f"{person['Name']} {_join(clauses)}."
    if rng.random() < 0.15:
        sentence += f" {phrases.sentence(rng)}"
    if rng.random() < 0.1 and len(keys) > 2:
        keys = keys[:-1]
    if rng.random() < 0.15:
        rng.shuffle(keys)
    wanted = _join(keys) if rng.random() < 0.8 else ", ".join(keys)
    empty = rng.choice(('""', "...", "null", '"?"', '"..."'))
    form = "{" + ", ".join(f'"{key}": {empty}' for key in keys) + "}"
    request = rng.choice(_LISTS.requests).format(k=wanted, s=sentence, j=form)
    if rng.random() < 0.3:
        sample.turn("system", phrases.plain_system(rng))
    asked = sample.turn("user", request)
    values = {key: person[_COLUMN[key]] for key in keys}
    content = json.dumps(
        {key: int(value) if key == "age" else value for key, value in values.items()},
        ensure_ascii=False,
    )
    said = sample.answer(content)
    for value in values.values():
        sample.copied_from("question", value, said, asked)
    return sample
