"""Requests with their kind: what the classifier learns from."""

import random

from minivllm.embedded.data.facts import capital_questions, vary
from minivllm.embedded.data.jsonfill import json_chat
from minivllm.embedded.data.lists import WORDS
from minivllm.embedded.data.people import Population
from minivllm.embedded.data.phrases import question
from minivllm.embedded.data.sample import Sample
from minivllm.embedded.data.sentences import ASKED
from minivllm.embedded.data.smalltalk import exchanges
from minivllm.embedded.data.tools import TOOLS, request

KINDS = ("table", "capital", "small talk", "tool", "json")
"""What the embedded model can be asked."""


def _last_user_turn(sample: Sample) -> str:
    return sample.text.rsplit("<|im_start|>user\n", 1)[1].split("<|im_end|>", 1)[0]


def request_of_kind(rng: random.Random, kind: str) -> str:
    """A random request of this kind, as the embedded model's training has them."""
    if kind == "table":
        return question(rng, rng.choice(ASKED), Population(rng, invented=0.3).name())
    if kind == "capital":
        return vary(rng, rng.choice(capital_questions(rng.choice(sorted(WORDS.capitals)))))
    if kind == "small talk":
        requests, _ = rng.choice(exchanges())
        return vary(rng, rng.choice(requests))
    if kind == "tool":
        return vary(rng, request(rng, rng.choice(TOOLS))[0])
    return _last_user_turn(json_chat(rng))
