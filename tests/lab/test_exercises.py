"""Every solution passes its check, and the usual wrong answers are told what is wrong."""

import html
import textwrap

import pytest
from exercise_kinds import KINDS

from minivllm.course.asking.answers import NotYet, compare
from minivllm.course.asking.puzzle import METRICS, Puzzle
from minivllm.exercises import ch01

PUZZLES = {name: kind for name, kind in KINDS.items() if isinstance(kind(0), Puzzle)}


@pytest.mark.parametrize("name", KINDS)
def test_the_solution_is_right(name, capsys):
    exercise = KINDS[name](0)
    exercise.grade(exercise.solve())
    exercise.grade(None)
    right, unsolved = capsys.readouterr().out.splitlines()
    assert right.startswith("right: ")
    assert unsolved == "not solved yet"
    shown = exercise.show_help()._repr_mimebundle_()["text/html"]
    assert shown.count("<details>") == 2
    assert html.escape(exercise.hint) in shown
    assert 25 <= len(exercise.why.split()) <= 100
    assert html.escape("\n".join(textwrap.wrap(exercise.why, 90))) in shown
    assert exercise.solution.__name__ in shown


def test_a_seed_calls_a_function_with_other_arguments(capsys):
    first, second = ch01.work(0), ch01.work(1)
    known = {call: first.solve()(*call) for call in first.calls}
    by_heart = known.__getitem__
    first.grade(lambda *call: by_heart(call))
    second.grade(lambda *call: by_heart(call))
    right, raised = capsys.readouterr().out.splitlines()
    assert right.startswith("right: ")
    assert f"work{second.given['first_calls'][0]} raised KeyError" in raised


def test_there_are_puzzles_in_five_chapters():
    assert {name.split(".")[0] for name in PUZZLES} == {"ch05", "ch06", "ch07", "ch08", "ch27"}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", PUZZLES)
def test_a_puzzle_asks_for_more_than_the_default(name, seed):
    """The default misses a target, the solution none, and the check says by how much."""
    puzzle = PUZZLES[name](seed)
    targets = puzzle.given["targets"]
    default, solved = puzzle.run(), puzzle.run(puzzle.solve())
    assert any(METRICS[metric](default) > most for metric, most in targets.items())
    assert all(METRICS[metric](solved) <= most for metric, most in targets.items())
    with pytest.raises(NotYet, match=r"is [\d.]+, at most [\d.]+ is asked for"):
        puzzle.check({})


def test_a_wrong_answer_is_told_the_first_mistake_that_leads_to_it():
    compare(6, 6, {"doubled": 6}, "wrong")  # right comes first
    mistakes = {"halved": 3, "also halved": 3, "doubled": 12}
    for answer, told, value in ((3, "halved", None), (12, "doubled", None), (7, "wrong", "6")):
        with pytest.raises(NotYet, match=f"^{told}$") as caught:
            compare(answer, 6, mistakes, "wrong", "6")
        assert caught.value.value == value
    with pytest.raises(NotYet, match="doubled"):
        compare(12.1, 6, mistakes, "wrong", same=lambda got, right: abs(got - right) < 0.2)
