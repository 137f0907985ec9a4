"""Prompts of a load: random text, conversations of ShareGPT, questions about tables.

(vLLM: vllm/benchmarks/datasets)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from minivllm.utils.validation import check

# Conversations that are too short or too long for a benchmark are left out, as vLLM does.
_SHORTEST = 4  # tokens, as the next two
_LONGEST_PROMPT = 1024
_LONGEST = 2048
_ROUNDS = 10  # in which random text gets as many tokens as it is to have
_FIRST = "Ada Ben Cleo Dev Eve Finn Gina Hugo Ines Jon Kira Liam Mona Nils Olga Pete".split()
_LAST = "Hart Ortiz Mehta Stone Baker Novak Rossi Klein Silva Moore Dubois Tanaka".split()
_JOBS = "Engineer Nurse Pilot Teacher Lawyer Chef Artist Doctor Farmer Writer".split()
_PLACES = "UK Mexico Canada India France Japan Brazil Germany Italy Spain".split()


@dataclass(frozen=True)
class SampleRequest:
    """A request of a load (vLLM: ``SampleRequest``)."""

    messages: list[dict[str, str]]
    output_len: int  # most tokens of the answer
    lora_name: str | None = None  # the adapter that it names as its model

    @property
    def prompt(self) -> str:
        """The same for a server that completes text: what was said, with empty lines between."""
        return "\n\n".join(message["content"] for message in self.messages)


def draw_adapters(
    requests: Sequence[SampleRequest], names: Sequence[str], seed: int = 0
) -> list[SampleRequest]:
    """Draw one of these adapters for each request."""
    rng = Random(seed)
    return [replace(request, lora_name=rng.choice(names)) for request in requests]


def _question(text: str, output_len: int) -> SampleRequest:
    return SampleRequest([{"role": "user", "content": text}], output_len)


def random_requests(
    tokenizer: Any,
    num_requests: int,
    input_len: int = 1024,
    output_len: int = 128,
    range_ratio: float = 0.0,
    prefix_len: int = 0,
    seed: int = 0,
) -> list[SampleRequest]:
    """Text of drawn tokens: nothing to be cached but a prefix that all share.

    Args:
        tokenizer: decides how long a text is.
        num_requests: how many.
        input_len, output_len: tokens of each.
        range_ratio: 0.25 draws lengths from 75 to 125 % of these.
        prefix_len: tokens more, the same in every prompt.
        seed: equal seeds give equal requests.
    """
    rng = Random(seed)
    special = set(tokenizer.all_special_ids)
    vocab = sorted(set(tokenizer.get_vocab().values()) - special)

    def draw(count: int) -> list[int]:
        """Tokens that are text by themselves, not a part of a character."""
        found: list[int] = []
        while len(found) < count:
            token = rng.choice(vocab)
            if "\ufffd" not in tokenizer.decode([token]):
                found.append(token)
        return found

    def text_of(count: int) -> str:
        """Neighbours may merge to one token: lengthened and cut until the count is right."""
        ids = draw(count)
        for _ in range(_ROUNDS):
            ids = tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False)
            if len(ids) == count:
                break
            ids = ids[:count] + draw(count - len(ids))
        return tokenizer.decode(ids)

    def near(length: int) -> int:
        spread = int(length * range_ratio)
        return max(1, rng.randint(length - spread, length + spread))

    prefix = text_of(prefix_len) if prefix_len else ""
    return [
        _question(prefix + text_of(near(input_len)), near(output_len)) for _ in range(num_requests)
    ]


def sharegpt_requests(
    tokenizer: Any,
    num_requests: int,
    path: str | Path,
    output_len: int | None = None,
    max_model_len: int | None = None,
    seed: int = 0,
    shuffle: bool = True,
    oversample: bool = True,
) -> list[SampleRequest]:
    """First questions of conversations, each with the number of tokens of its answer.

    Args:
        tokenizer: counts both.
        num_requests: how many.
        path: a JSON file, a list of objects with ``conversations``, turns with a ``value`` each.
        output_len: tokens of each answer instead.
        max_model_len: of the model, where that is known: what is longer is left out.
        seed: shuffles them, and draws those that come again.
        shuffle: False keeps the file's order.
        oversample: those that fit come again when there are too few.

    Raises:
        ValueError: for a file of another form, or one in which nothing fits.
        OSError: for a file that cannot be read.
    """
    try:
        talks = [talk["conversations"] for talk in json.loads(Path(path).read_text("utf-8"))]
        turns = [(t[0]["value"], t[1]["value"]) for t in talks if len(t) >= 2]
    except (ValueError, LookupError, TypeError) as error:
        form = 'a list of {"conversations": [{"value": text}, ...]}'
        raise ValueError(f"dataset_path must be {form}, and {path} is not: {error!r}") from error
    rng = Random(seed)
    if shuffle:
        rng.shuffle(turns)
    longest = min(_LONGEST, max_model_len or _LONGEST)
    found: list[SampleRequest] = []
    for asked, answered in turns:
        if len(found) == num_requests:
            break
        count = len(tokenizer.encode(asked))
        wanted = output_len or len(tokenizer.encode(answered, add_special_tokens=False))
        fits = _SHORTEST <= count <= _LONGEST_PROMPT and count + wanted <= longest
        if fits and (output_len or wanted >= _SHORTEST):
            found.append(_question(asked, wanted))
    why = f"a file with a question and answer of {_SHORTEST} to {longest} tokens"
    check(bool(found), "dataset_path", str(path), why)
    return found + (rng.choices(found, k=num_requests - len(found)) if oversample else [])


def table_requests(
    num_requests: int,
    num_rows: int = 4,
    num_questions: int = 8,
    output_len: int = 48,
    seed: int = 0,
) -> list[SampleRequest]:
    """Questions about tables of people: a long prefix that several requests share.

    Args:
        num_requests: how many.
        num_rows: people in a table.
        num_questions: how many requests ask about the same table.
        output_len: most tokens of an answer.
        seed: of names and numbers, and of who asks when.
    """
    rng = Random(seed)
    found = []
    while len(found) < num_requests:
        people = rng.sample([f"{first} {last}" for first in _FIRST for last in _LAST], num_rows)
        lines = ["| ID | Name | Age | Occupation | Country |", "|----|------|-----|------|------|"]
        for number, name in enumerate(people, 1):
            age = rng.randint(20, 69)
            job = rng.choice(_JOBS)
            place = rng.choice(_PLACES)
            lines.append(f"| {number} | {name} | {age} | {job} | {place} |")
        table = "Answer questions about this table.\n\n" + "\n".join(lines) + "\n"
        for _ in range(num_questions):
            question = rng.choice(("How old is {}?", "What is {}'s occupation?"))
            said = [("system", table), ("user", question.format(rng.choice(people)))]
            messages = [{"role": role, "content": content} for role, content in said]
            found.append(SampleRequest(messages, output_len))
    found = found[:num_requests]
    rng.shuffle(found)
    return found
