"""Exercises of notebook 12: tokens that the filters leave, what is held back, how many to draw."""

from __future__ import annotations

import math
from random import Random

from minivllm.course.asking.answers import NotYet
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.function_exercise import FunctionExercise

# -- core: what is left ------------------------------------------------------------------------


@seeded(difficulty=2, minutes=5)
def survivors(rng: Random) -> Exercise:
    """Which tokens can still be drawn?"""
    while True:
        cuts = sorted(rng.sample(range(1, 50), 6))
        parts = [b - a for a, b in zip([0, *cuts], [*cuts, 50], strict=True)]
        given = {
            "probs": {
                letter: part * 2 / 100
                for letter, part in zip("ABCDEFG", sorted(parts, reverse=True), strict=True)
            },
            "min_p": rng.choice([0.1, 0.15, 0.25]),
            "top_k": rng.randint(3, 6),
            "top_p": rng.choice([0.65, 0.75, 0.85]),
        }
        stages = _stages(**given)
        distinct = len(set(given["probs"].values())) == 7
        if distinct and len({*stages}) == 4 and _margin(**given) > 0.005:
            break
    return Exercise(
        _check_survivors,
        "min_p compares with the best token, top_k counts, and top_p adds up what those two left, "
        "divided by its sum.",
        _solve_survivors,
        "These are a model's probabilities for the next token, at temperature 1. Which tokens can "
        "still be drawn with these parameters? Answer with a string of letters.",
        given,
    )


def _stages(probs, min_p, top_k, top_p) -> list[str]:
    """Tokens that are left at first, and after each of the filters."""
    order = sorted(probs, key=probs.get, reverse=True)
    after_min_p = [t for t in order if probs[t] >= min_p * probs[order[0]]]
    after_top_k = after_min_p[:top_k]
    total = sum(probs[t] for t in after_top_k)
    kept = []
    better = 0.0
    for token in after_top_k:
        if better >= top_p:
            break
        kept.append(token)
        better += probs[token] / total
    return ["".join(tokens) for tokens in (order, after_min_p, after_top_k, kept)]


def _margin(probs, min_p, top_k, top_p) -> float:
    """Distance of the closest decision of min_p or top_p."""
    _, _, after_top_k, _ = _stages(probs, min_p, top_k, top_p)
    best = max(probs.values())
    total = sum(probs[t] for t in after_top_k)
    sums = [sum(probs[t] for t in after_top_k[:i]) / total for i in range(1, len(after_top_k))]
    near_top_p = min((abs(s - top_p) for s in sums), default=1.0)
    return min(near_top_p, *(abs(p - min_p * best) for p in probs.values()))


def _solve_survivors(probs, min_p, top_k, top_p):
    order = sorted(probs, key=probs.get, reverse=True)
    left = [t for t in order if probs[t] >= min_p * probs[order[0]]][:top_k]
    total, answer, better = sum(probs[t] for t in left), "", 0.0
    for token in left:
        if better < top_p:  # those before it do not reach top_p yet
            answer += token
        better += probs[token] / total
    return answer


def _check_survivors(answer, probs, min_p, top_k, top_p) -> str:
    if not isinstance(answer, str) or not answer or not {*answer} <= {*probs}:
        raise NotYet("give a string of letters from A to G, like 'AB'.")
    _, after_min_p, after_top_k, kept = _stages(probs, min_p, top_k, top_p)
    for token in answer:
        if token not in after_min_p:
            least = min_p * max(probs.values())
            raise NotYet(f"{token} has {probs[token]}, and min_p asks for {least:.3f} at least.")
        if token not in after_top_k:
            raise NotYet(f"{token} is not among the {top_k} best that min_p has left.")
    mine = "".join(sorted(set(answer), key=kept.find))
    undivided = "".join(t for i, t in enumerate(after_top_k)
                        if sum(probs[b] for b in after_top_k[:i]) < top_p)  # fmt: skip
    if mine != kept and {*answer} == {*undivided}:
        raise NotYet(
            "top_p adds up what the other filters left, divided by its sum; you took the "
            "probabilities as they are given."
        )
    if mine != kept and {*answer} == {*after_top_k}:
        raise NotYet("min_p and top_k are right; top_p takes away more.")
    if {*answer} == {*kept[:-1]}:
        raise NotYet("the token that reaches top_p is kept, too: one is missing.")
    total = sum(probs[t] for t in after_top_k)
    if len({*answer}) > len(kept):
        better = sum(probs[t] for t in kept) / total
        raise NotYet(
            f"fewer are {better:.1%} of what top_k left: that is enough for {top_p}.",
            f"{kept} are {better:.1%} of what top_k left: that is enough for {top_p}.",
        )
    if mine != kept:
        missing = next(token for token in kept if token not in mine)
        better = sum(probs[t] for t in kept[: kept.index(missing)]) / total
        raise NotYet(
            "one is missing: those before it are not enough for top_p.",
            f"{missing} is missing: those before it are only {better:.1%} of what top_k left.",
        )
    return f"{len(kept)} of 7 are left; top_p alone would have looked at all of them."


# -- stretch: hold back no more than is needed -------------------------------------------------


@seeded(difficulty=3, minutes=15)
def hold_back(rng: Random) -> Exercise:
    """How much of a text can be shown while a stop string may still come?"""
    calls = []
    while len(calls) < 200:
        text = "".join(rng.choices("ab.", k=rng.randint(0, 8)))
        stops = ["".join(rng.choices("ab.", k=rng.randint(1, 4))) for _ in range(rng.randint(1, 2))]
        if not any(stop in text for stop in stops):  # else the stream would be over
            calls.append((text, stops))
    showable = _solve_hold_back()
    saved = sum(
        len(showable(text, stops)) - max(0, len(text) - max(map(len, stops)) + 1)
        for text, stops in calls
    )
    return FunctionExercise(
        'To hold back len(stop) - 1 characters is safe, but often too careful: after "abc", a stop '
        'string "xyz" needs none of them. Write showable(text, stops): the longest beginning of '
        "the text that no stop string can still take back. (No stop string is in the text yet.)",
        "Which is the longest end of the text that is a beginning of a stop string?",
        _solve_hold_back,
        calls=calls,
        learnt=f"{saved} characters are shown earlier than by the rule of the longest stop string.",
        explain=_explain_hold_back,
    )


def _explain_hold_back(arguments, got, right) -> None:
    text, stops = arguments
    if not isinstance(got, str) or not text.startswith(got):
        raise NotYet(f"showable({text!r}, {stops}) should be a beginning of the text.")
    if len(got) > len(right):
        rest = text[len(right) :]
        raise NotYet(f"after {text!r} one of {stops} may come, and {rest!r} would be in it.")
    raise NotYet(
        f"{text!r} can show more than {got!r}: the rest is no beginning of {stops}.",
        f"{text!r} can show {right!r}: the rest is no beginning of {stops}.",
    )


def _solve_hold_back():
    def showable(text: str, stops: list[str]) -> str:
        for held in range(min(len(text), max(map(len, stops)) - 1), 0, -1):
            if any(stop.startswith(text[-held:]) for stop in stops):
                return text[:-held]
        return text

    return showable


# -- design: how many to draw ------------------------------------------------------------------


@seeded(difficulty=2, minutes=10)
def draws(rng: Random) -> Exercise:
    """How many samples, if a test can tell right from wrong?"""
    calls = [(rng.randint(5, 60) / 100, rng.choice([0.9, 0.95, 0.99])) for _ in range(60)]
    return FunctionExercise(
        "A sample solves a task with probability p_right, and a test can tell. What is the "
        "smallest number of independent samples of which at least one is right with probability "
        "p_wanted? Write draws(p_right, p_wanted).",
        "n samples are all wrong with probability (1 - p) to the power of n.",
        _solve_draws,
        calls=calls,
        learnt="samples share their prompt, so each one costs only the tokens of its own answer.",
        mistakes={
            "round up: with fewer the probability is not reached.": lambda p, wanted: (
                _solve_draws()(p, wanted) - 1
            ),
            "fewer do.": lambda p, wanted: _solve_draws()(p, wanted) + 1,
            "that is a number of samples of which one is right in the mean.": lambda p, wanted: (
                math.ceil(1 / p)
            ),
            "probabilities do not add up: count when all are wrong.": lambda p, wanted: math.ceil(
                wanted / p
            ),
            "that many are all right with that probability; one is enough.": lambda p, wanted: (
                math.ceil(math.log(1 - wanted) / math.log(p))
            ),
            "1 - p_wanted is the probability that all are wrong.": lambda p, wanted: math.ceil(
                math.log(wanted) / math.log(1 - p)
            ),
        },
    )


def _solve_draws():
    def draws(p_right, p_wanted):
        return math.ceil(math.log(1 - p_wanted) / math.log(1 - p_right))

    return draws
