"""Exercises of notebook 00b: where a token looks, attention in Python, weights for a layer."""

from __future__ import annotations

import math
from random import Random

from minivllm.course.asking.answers import NotYet, compare, whole_number, whole_numbers
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.function_exercise import FunctionExercise

# -- core: where a token looks -------------------------------------------------------------------


@seeded(difficulty=1, minutes=4)
def looks(rng: Random) -> Exercise:
    """At which token does a token look most?"""
    while True:
        query = [rng.randint(-3, 3) for _ in range(3)]
        keys = [[rng.randint(-3, 3) for _ in range(3)] for _ in range(8)]
        token = rng.randint(4, 6)
        scores = [_dot(query, key) for key in keys]
        seen = scores[: token + 1]
        candidates = {
            seen.index(max(seen)), scores.index(max(scores)), seen.index(min(seen)), token,
        }  # fmt: skip
        unique = sorted(seen)[-1] > sorted(seen)[-2] and max(scores) > max(seen)
        if unique and len(candidates) == 4 and seen.index(max(seen)) > 1:
            break
    return Exercise(
        _check_looks,
        "A score is a sum of products: the first numbers, the second, the third. Which scores "
        "may this token use at all?",
        _solve_looks,
        "Tokens count from 0; keys[j] is the key of token j, and query is the query of token "
        "number `token`. At which token does it look most in a decoder: which one gets the "
        "largest share, and what is its score (not yet divided by the root)? Answer with a pair "
        "(token, score).",
        {"query": query, "keys": keys, "token": token},
    )


def _dot(one: list[int], other: list[int]) -> int:
    return sum(a * b for a, b in zip(one, other, strict=True))


def _solve_looks(query, keys, token) -> tuple[int, int]:
    scores = [sum(q * k for q, k in zip(query, key, strict=True)) for key in keys]
    seen = scores[: token + 1]  # itself and those before it
    return seen.index(max(seen)), max(seen)


def _check_looks(answer, query, keys, token) -> str:
    place, score = whole_numbers(answer, ("token", "score"))
    scores = [_dot(query, key) for key in keys]
    seen = scores[: token + 1]
    right = seen.index(max(seen))
    lengths = [_dot(key, key) for key in keys[: token + 1]]
    if place not in range(len(keys)):
        raise NotYet(f"token: they count from 0, so there are 0 to {len(keys) - 1}.")
    if place > token:
        raise NotYet(f"token: {token} cannot see {place}, which comes behind it.")
    mistakes = {
        "token: that one has the smallest score; exp grows with the score.": seen.index(min(seen)),
        "token: that is the token itself. Its own score is not the largest here.": token,
        "token: that is the longest key; the query decides which direction counts.": (
            lengths.index(max(lengths))
        ),
        "token: the sign counts: a score far below 0 gets a share near 0.": (
            max(range(len(seen)), key=lambda j: abs(seen[j]))
        ),
    }
    wrong = f"token: {place} is not it. Each score is the sum of three products."
    compare(place, right, mistakes, wrong, f"token: the scores are {seen}: token {right}.")
    mistakes = {
        "score: that is its key with itself; multiply the query with its key.": lengths[right],
        "score: each product has a sign; here they were all taken as positive.": sum(
            abs(q * k) for q, k in zip(query, keys[right], strict=True)
        ),
    }
    wrong = f"score: {score} is not it. Each score is the sum of three products."
    compare(score, seen[right], mistakes, wrong, f"score: it is {seen[right]}.")
    return f"the scores are {seen}; softmax gives the largest share to the largest score."


# -- stretch: attention in Python ----------------------------------------------------------------


@seeded(difficulty=3, minutes=12)
def attend(rng: Random) -> FunctionExercise:
    """What does one head give a token, in plain Python?"""
    calls: list[tuple] = []
    for _ in range(30):
        width = rng.choice([2, 4])
        num_tokens = rng.randint(2, 5)
        query = [float(rng.randint(-2, 2)) for _ in range(width)]
        keys = [[float(rng.randint(-2, 2)) for _ in range(width)] for _ in range(num_tokens)]
        values = [[float(rng.randint(0, 9)) for _ in range(width)] for _ in range(num_tokens)]
        if len({_dot(query, key) for key in keys}) > 1:
            calls.append((query, keys, values))
    return FunctionExercise(
        "A token has this query; keys and values are those of all tokens that it may see, itself "
        "included. Write attend(query, keys, values): what one head gives it, a list of numbers, "
        "each rounded to 3 places.",
        "Scores, divided by the root of the query's length; exp of each; divided by their sum; "
        "then the sum of shares times values.",
        _solve_attend,
        calls=calls,
        learnt="that is all of attention: the rest is to do it for many at once.",
        mistakes={
            "divide the scores by the root of the query's length before exp.": _attend(root=False),
            "scores are no shares: exp, and divide by the sum.": _attend(softmax=False),
            "the shares must add up to 1: divide by their sum.": _attend(normed=False),
            "shares multiply values; you took the keys.": _attend(of_keys=True),
            "divide by the root of the length, not by the length.": _attend(whole=True),
            "that is the value of the largest share only; the others count, too.": _attend(
                hard=True
            ),
        },
    )


def _solve_attend():
    from math import exp, sqrt

    def attend(query: list, keys: list, values: list) -> list[float]:
        scores = [
            sum(q * k for q, k in zip(query, key, strict=True)) / sqrt(len(query)) for key in keys
        ]
        powers = [exp(score) for score in scores]
        shares = [power / sum(powers) for power in powers]
        columns = zip(*values, strict=True)
        return [
            round(sum(s * v for s, v in zip(shares, column, strict=True)), 3) for column in columns
        ]

    return attend


def _attend(
    root: bool = True,
    softmax: bool = True,
    normed: bool = True,
    of_keys: bool = False,
    whole: bool = False,
    hard: bool = False,
):
    """A function like ``attend`` with one mistake."""

    def attend(query: list, keys: list, values: list) -> list[float]:
        divisor = len(query) if whole else math.sqrt(len(query)) if root else 1.0
        shares = [_dot(query, key) / divisor for key in keys]
        if softmax:
            shares = [math.exp(score) for score in shares]
            total = sum(shares) if normed else 1.0
            shares = [power / total for power in shares]
        if hard:
            best = shares.index(max(shares))
            shares = [float(j == best) for j in range(len(shares))]
        columns = [*zip(*(keys if of_keys else values), strict=True)]
        return [round(_dot(shares, column), 3) for column in columns]

    return attend


# -- design: weights for a layer -----------------------------------------------------------------


@seeded(difficulty=2, minutes=8)
def width(rng: Random) -> Exercise:
    """How wide may the MLP be, so that a layer has no more weights than allowed?"""
    hidden = 64 * rng.randint(4, 16)
    inner = 64 * rng.randint(hidden // 32, hidden // 16)
    most = _num_weights(hidden, inner) + rng.randint(1, 3 * hidden * 64 - 1)
    return Exercise(
        _check_width,
        "Take the four square matrices of attention off first. What is left is for three "
        "matrices of hidden_size times the width.",
        _solve_width,
        "A layer like that of the notebook: q, k and v are as wide as the hidden size, o leads "
        "back, and the MLP has gate, up and down. Norms and biases are not counted. It may have "
        "max_weights weights. How wide can the MLP be at most (intermediate_size), if that must be "
        "a multiple of 64?",
        {"hidden_size": hidden, "max_weights": most},
    )


def _num_weights(hidden: int, inner: int) -> int:
    return 4 * hidden * hidden + 3 * hidden * inner


def _solve_width(hidden_size, max_weights) -> int:
    left = max_weights - 4 * hidden_size * hidden_size  # q, k, v and o
    return left // (3 * hidden_size) // 64 * 64  # gate, up and down


def _check_width(answer, hidden_size, max_weights) -> str:
    answer = whole_number(answer)
    right = _solve_width(hidden_size, max_weights)
    attention = 4 * hidden_size * hidden_size

    def widest(squares: int, matrices: int) -> int:
        left = max_weights - squares * hidden_size * hidden_size
        return left // (matrices * hidden_size) // 64 * 64

    mistakes = {
        "the MLP has three matrices: gate, up and down.": widest(4, 2),
        "that counts gate or up or down alone.": widest(4, 1),
        "attention has four matrices: o leads back.": widest(3, 3),
        "attention has weights, too.": widest(0, 3),
        "that counts one of the four matrices of attention.": widest(1, 3),
    }
    needed = _num_weights(hidden_size, answer)
    if answer != right and answer % 64 and answer not in mistakes.values():
        raise NotYet("the width must be a multiple of 64.")
    wrong = f"that layer has {needed:,} weights, and {max_weights:,} are allowed."
    if needed <= max_weights:
        wrong = f"that layer has {needed:,} weights; a multiple of 64 more would fit, too."
    compare(answer, right, mistakes, wrong)
    share = 3 * hidden_size * right / (attention + 3 * hidden_size * right)
    return f"{right}: {share:.0%} of the layer's weights are in the MLP."
