"""Exercises of notebook A5: perplexity, what a chat's turns hit, what fits beside the weights."""

from __future__ import annotations

import math
from random import Random

from minivllm.course.asking.answers import compare, number_list
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.function_exercise import FunctionExercise

# -- core: perplexity ----------------------------------------------------------------------------


@seeded(difficulty=2, minutes=6)
def perplexity(rng: Random) -> FunctionExercise:
    """Perplexity of a text, from the log probabilities of its tokens."""
    calls = [(_logprobs(rng),) for _ in range(30)]
    return FunctionExercise(
        "logprobs has the log probability (base e) of each token of a text, after those before it. "
        "Nothing comes before the first, whose entry is None. Write perplexity(logprobs), rounded "
        "to two places.",
        "Of how many tokens would a choice by dice be as hard? e to the mean surprise.",
        _solve_perplexity,
        calls=calls,
        learnt="one token that is very unlikely weighs as much as many that are a little so.",
        mistakes={
            "the first token was not predicted, so it does not count.": _perplexity(first=1),
            "the mean of the log probabilities, not their sum.": _perplexity(mean=False),
            "the log probabilities have base e, not 2.": _perplexity(base=2),
            "a surprise is minus the log probability.": _perplexity(sign=1),
            "the mean of the logarithms, not the logarithm of the mean.": _inverse_mean,
        },
    )


def _logprobs(rng: Random) -> list[float | None]:
    return [None, *(-rng.randint(1, 40) / 10 for _ in range(rng.randint(4, 8)))]


def _perplexity(first=0, mean=True, base=math.e, sign=-1):
    def perplexity(logprobs):
        known = logprobs[1:]
        total = sum(known) / (len(known) + first if mean else 1)
        return round(base ** (sign * total), 2)

    return perplexity


def _inverse_mean(logprobs):
    known = logprobs[1:]
    return round(len(known) / sum(map(math.exp, known)), 2)


def _solve_perplexity():
    def perplexity(logprobs):
        known = [logprob for logprob in logprobs if logprob is not None]
        return round(math.exp(-sum(known) / len(known)), 2)

    return perplexity


# -- stretch: the turns of a chat ----------------------------------------------------------------


@seeded(difficulty=3, minutes=10)
def hits(rng: Random) -> Exercise:
    """Tokens that each turn of a chat finds in the prefix cache."""
    block_size = 16
    while True:
        turns = [(rng.randint(9, 70), rng.randint(20, 90)) for _ in range(4)]
        lengths = _ends(turns)
        if lengths[rng.randrange(3)] % block_size == 0:  # where the last token decides
            break
    return Exercise(
        _check_hits,
        "Which tokens have K and V when a turn ends? All that went through the model. The one that "
        "was drawn last did not.",
        _solve_hits,
        "Each turn of a chat adds this many tokens of a question, the template's words included, "
        "and then this many of the answer. The next turn sends all of it again. Nothing else is "
        "asked, and the pool is large. How many tokens does each turn find in the prefix cache? "
        "Answer with a list.",
        {"block_size": block_size, "turns": turns},
    )


def _ends(turns) -> list[int]:
    """Tokens in all, after each turn."""
    return [sum(map(sum, turns[: i + 1])) for i in range(len(turns))]


def _solve_hits(block_size, turns):
    total, found = 0, []
    for question, answer in turns:
        found.append(max(total - 1, 0) // block_size * block_size)  # the last was only drawn
        total += question + answer
    return found


def _check_hits(answer, block_size, turns) -> str:
    mine = number_list(answer, "tokens found by each turn")
    right = _solve_hits(block_size, turns)
    before = [0, *_ends(turns)[:-1]]
    prompts = [total + question for total, (question, _) in zip(before, turns, strict=True)]
    whole_blocks = [n // block_size * block_size for n in before]
    of_prompts = [n // block_size * block_size for n in (0, *prompts[:-1])]
    compare(
        mine,
        right,
        {
            "the last token of an answer was drawn, and has no K and V yet.": whole_blocks,
            "only whole blocks are found.": [max(n - 1, 0) for n in before],
            "these are tokens before the turn; only whole blocks are found.": before,
            "answers are kept as well as prompts.": of_prompts,
            "these are blocks; give tokens.": [n // block_size for n in right],
            "these are the prompts; a turn finds what was computed before.": prompts,
            "a list with an entry for each turn, the first included.": right[1:],
        },
        f"not {mine}. The first turn finds nothing, and each other one whole blocks of "
        f"{block_size} tokens.",
        f"it is {right}.",
    )
    return f"the last turn computes {prompts[-1] - right[-1]} of its {prompts[-1]} tokens."


# -- design: beside the weights ------------------------------------------------------------------


@seeded(difficulty=3, minutes=8)
def room(rng: Random) -> FunctionExercise:
    """Tokens whose K and V fit beside a model's weights."""
    return FunctionExercise(
        "A laptop has this many gigabytes (10**9 bytes) free. The model has this many parameters, "
        "each of this many bits (scales included, so the bits may have a half), and needs kv_bytes "
        "bytes of K and V for each token. Leave one gigabyte for Python, torch and a step's "
        "activations. Write room(gigabytes, parameters, bits, kv_bytes): how many whole tokens "
        "fit; 0 if not even the weights do.",
        "Take the weights and the gigabyte away from what is free, then divide.",
        _solve_room,
        calls=[_laptop(rng) for _ in range(24)],
        learnt="a model that fits may leave no room for anybody to talk to it.",
        mistakes={
            "one gigabyte is taken already.": _room(reserve=0),
            "bits are not bytes.": _room(bits_per_byte=1),
            "the weights are there, too.": _room(weights=0),
            "a gigabyte is 10**9 bytes here.": _room(gigabyte=2**30),
            "less than nothing does not fit; give 0.": _room(least=-(10**12)),
        },
    )


def _laptop(rng: Random) -> tuple[int, int, float, int]:
    parameters = rng.choice([135, 360, 1235, 1700, 3200, 7600, 8030, 14700]) * 10**6
    kv_bytes = rng.choice([12_288, 23_040, 36_864, 131_072, 196_608])
    return rng.choice([4, 6, 8, 12, 16]), parameters, rng.choice([4.5, 8.5, 16]), kv_bytes


def _room(reserve=1, bits_per_byte=8, weights=1, gigabyte=10**9, least=0):
    def room(gigabytes, parameters, bits, kv_bytes):
        left = (gigabytes - reserve) * gigabyte - weights * parameters * bits / bits_per_byte
        return max(int(left // kv_bytes), least)

    return room


def _solve_room():
    def room(gigabytes, parameters, bits, kv_bytes):
        left = gigabytes * 10**9 - 10**9 - parameters * bits / 8
        return max(int(left // kv_bytes), 0)

    return room
