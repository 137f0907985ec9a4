"""Notebook 15's exercises: right solutions from every seed, wrong answers told why."""

import re

import pytest

from minivllm.course.asking.answers import NotYet
from minivllm.exercises import ch15
from minivllm.structured_output.dfa import DEAD, DFA

NONSENSE = ["x", "", -1, 0, 10**9, [], {}, None.__class__, 2.5, lambda *given: 1, {"A": 1}, "("]
MAKERS = [ch15.allowed, ch15.states, ch15.phone]


@pytest.mark.parametrize("make", MAKERS)
def test_every_seed_has_a_problem_and_a_solution(make):
    exercises = [make(seed) for seed in range(30)]
    assert len({repr(exercise.given) for exercise in exercises}) >= 20
    for exercise in exercises:
        assert exercise.check(exercise.solve())


@pytest.mark.parametrize("exercise", [make(1) for make in MAKERS])
def test_whatever_the_answer_is_it_gets_a_sentence(exercise):
    for answer in NONSENSE:
        with pytest.raises(NotYet) as caught:
            exercise.check(answer)
        assert str(caught.value).endswith("."), answer


@pytest.mark.parametrize("seed", range(20))
def test_allowed_is_what_some_match_goes_on_with(seed):
    """By brute force: every match up to some length, by Python's own re."""
    exercise = ch15.allowed(seed)
    pattern, so_far, tokens = exercise.given.values()
    right = exercise.solve()
    for letter, token in tokens.items():
        if token == ch15.END:
            assert (letter in right) == bool(re.fullmatch(pattern, so_far))
        elif letter in right:
            with pytest.raises(NotYet, match="one is missing: ") as caught:
                exercise.check(right.replace(letter, "") or next(c for c in tokens if c != letter))
            example = str(caught.value).split("missing: ")[1].removesuffix(" is a match.")
            assert re.fullmatch(pattern, eval(example))
        else:
            with pytest.raises(NotYet, match=f"{letter}: "):
                exercise.check(right + letter)


@pytest.mark.parametrize("seed", range(30))
def test_states_are_as_few_as_can_be(seed):
    """No two of them let the same texts follow (Moore's refinement)."""
    dfa = DFA(ch15.states(seed).given["pattern"])
    classes = [int(ends) for ends in dfa.accepting]
    for _ in range(dfa.num_states):
        seen = {}
        classes = [
            seen.setdefault((classes[s], tuple(DEAD if t == DEAD else classes[t] for t in row)),
                            len(seen))
            for s, row in enumerate(dfa.rows)
        ]  # fmt: skip
    assert len(set(classes)) == dfa.num_states


def test_states_too_many_or_too_few():
    exercise = ch15.states(0)
    right = exercise.solve()
    for wrong, words in ((right + 1, "dead end"), (right + 2, "too many"), (right - 1, "too few")):
        with pytest.raises(NotYet, match=words):
            exercise.check(wrong)


@pytest.mark.parametrize("seed", range(5))
def test_phone_patterns_that_are_nearly_right(seed):
    exercise = ch15.phone(seed)
    right = exercise.solve()
    country = f"\\+{exercise.given['country']} "
    for wrong in (
        right.replace(f"({country})?", f"{country}"),  # not only where it may
        right.replace("{2,3}", "{3}"),
        right.replace(") )?", ") )"),
        right[:-1] + "5}",
        f"({country})?{right.replace(f'({country})?', '')}",  # without an area code, too
        ".*",
        f"{right}|{right[:-3]}é",
    ):
        with pytest.raises(NotYet, match=r"must (not )?match"):
            exercise.check(wrong)
    with pytest.raises(NotYet, match="the automaton refuses it"):
        exercise.check("(?=a)b")
