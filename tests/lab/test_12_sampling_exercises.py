"""Notebook 12's exercises: right solutions from every seed, wrong answers told why."""

import pytest

from minivllm.course.asking.answers import NotYet
from minivllm.exercises import ch12

NONSENSE = ["x", "", -1, 0, 10**9, [], {}, None.__class__, 2.5, lambda *given: 1, {"A": 1}]


@pytest.mark.parametrize("make", [ch12.survivors, ch12.draws])
def test_every_seed_has_a_problem_and_a_solution(make):
    exercises = [make(seed) for seed in range(30)]
    assert len({repr(exercise.given) for exercise in exercises}) == 30
    for exercise in exercises:
        assert exercise.check(exercise.solve())


@pytest.mark.parametrize("exercise", [ch12.survivors(1), ch12.draws(1)])
def test_whatever_the_answer_is_it_gets_a_sentence(exercise):
    assert exercise.check(exercise.solve())
    for answer in NONSENSE:
        with pytest.raises(NotYet) as caught:
            exercise.check(answer)
        assert str(caught.value).endswith("."), answer


def test_survivors_says_which_filter_was_overlooked():
    exercise = ch12.survivors(0)
    _, after_min_p, after_top_k, kept = ch12._stages(**exercise.given)
    for answer, message in (
        ("G", "min_p asks for"),
        (after_min_p, "best that min_p has left"),
        (after_top_k, "divided by its sum"),
        (kept[:-1] or "B", "one is missing"),
    ):
        with pytest.raises(NotYet, match=message):
            exercise.check(answer)


@pytest.mark.parametrize("seed", [0, 1])
def test_holding_back_too_little_or_too_much_is_told(seed):
    def all_of_it(text, stops):
        return text

    def longest(text, stops):
        return text[: max(0, len(text) - max(map(len, stops)) + 1)]

    with pytest.raises(NotYet, match="may come"):
        ch12.hold_back(seed).check(all_of_it)
    with pytest.raises(NotYet, match="is no beginning of"):
        ch12.hold_back(seed).check(longest)
