"""Every solution passes its check, and the usual wrong answers are told what is wrong."""

import html

import pytest

from minivllm.exercises import ch01, ch05, ch06, ch07, ch08, chA2
from minivllm.lab.exercises.answers import NotYet
from minivllm.lab.exercises.exercise import Exercise
from minivllm.lab.exercises.puzzle import METRICS, Puzzle
from minivllm.scheduling.policies import FCFSPolicy, SchedulingPolicy

ALL = {
    f"{module.__name__.rsplit('.', 1)[1]}.{name}": exercise
    for module in (ch01, ch05, ch06, ch07, ch08, chA2)
    for name, exercise in vars(module).items()
    if isinstance(exercise, Exercise)
}
PUZZLES = {name: exercise for name, exercise in ALL.items() if isinstance(exercise, Puzzle)}


@pytest.mark.parametrize("name", ALL)
def test_the_solution_is_right(name, capsys):
    exercise = ALL[name]
    exercise.grade(exercise.solve())
    exercise.grade(None)
    right, unsolved = capsys.readouterr().out.splitlines()
    assert right.startswith("right: ")
    assert unsolved == "not solved yet"
    shown = exercise.show_help()._repr_mimebundle_()["text/html"]
    assert shown.count("<details>") == 2
    assert html.escape(exercise.hint) in shown
    assert exercise.solution.__name__ in shown


def norm(x):
    return (x**2).sum(-1, keepdims=True) ** 0.5


@pytest.mark.parametrize(
    ("exercise", "answer", "explanation"),
    [
        (ch01.work, lambda p, n, k: p + n, "is not"),
        (ch01.work, lambda p, n, k: 2 * p + n - 1, "before the loss, too"),
        (ch01.work, lambda p: p, "raised TypeError"),
        (chA2.add_norm, 3, "give a function"),
        (chA2.add_norm, lambda x, r, w, eps: x, "does not hold the sum"),
        (chA2.add_norm, lambda x, r, w, eps: r.__iadd__(x), "output[0, 0] is wrong"),
        (chA2.add_norm, lambda x, r, w, eps: r.__iadd__(x) / norm(r) * w, "not of their mean"),
        (chA2.add_norm, lambda x, r, w, eps: r.__iadd__(x) / norm(r) * len(w) ** 0.5, "weight is"),
        (chA2.add_norm, lambda x, r, w, eps: x.__iadd__(r), "x was changed"),
    ],
)
def test_a_wrong_answer_is_told_why(exercise, answer, explanation, capsys):
    exercise.grade(answer)
    out = capsys.readouterr().out
    assert out.startswith("not yet: ")
    assert explanation in out


class Stubborn(SchedulingPolicy):
    """Admits nobody, ever."""

    def may_admit(self, running):
        return False


class Broken(SchedulingPolicy):
    """Counts something that a request does not have."""

    def key(self, request):
        return request.length


def test_there_are_puzzles_in_four_chapters():
    assert {name.split(".")[0] for name in PUZZLES} == {"ch05", "ch06", "ch07", "ch08"}


@pytest.mark.parametrize("name", PUZZLES)
def test_a_puzzle_asks_for_more_than_the_default(name):
    """The default misses a target, the solution none, and the check says by how much."""
    puzzle = PUZZLES[name]
    targets = puzzle.given["targets"]
    default, solved = puzzle.run(), puzzle.run(puzzle.solve())
    assert any(METRICS[metric](default) > most for metric, most in targets.items())
    assert all(METRICS[metric](solved) <= most for metric, most in targets.items())
    with pytest.raises(NotYet, match=r"is [\d.]+, at most [\d.]+ is asked for"):
        puzzle.check({})


@pytest.mark.parametrize(
    ("puzzle", "answer", "explanation"),
    [
        (ch05.puzzle, FCFSPolicy, "mean_finish is 19.67, at most 10.5 is asked for."),
        (
            ch05.puzzle,
            Stubborn,
            "scheduling_policy Stubborn admits no request: 6 unfinished",
        ),
        (ch05.puzzle, Broken(), "AttributeError: 'Request' object has no attribute 'length'"),
        (ch05.puzzle, "shortest first", "give a SchedulingPolicy, or a dict with policy"),
        (ch05.puzzle, {"policy": 3}, "scheduling_policy must be one of"),
        (ch05.puzzle, {"max_num_seqs": 6}, "'max_num_seqs' is not yours to change; policy may be"),
        (ch06.puzzle, FCFSPolicy, "computed_tokens is 154"),
        (ch06.fit, {}, "peak_blocks is 16, at most 9 is asked for."),
        (ch06.fit, {"num_blocks": 10}, "steps is 17, at most 14 is asked for."),
        (ch06.fit, {"num_blocks": 4}, "the whole KV cache holds 3"),
        (ch06.fit, {"num_blocks": 0}, "num_blocks must be at least 2"),
        (ch06.fit, {"num_blocks": "ten"}, "num_blocks is a whole number from 0 to 10,000, not"),
        (ch07.puzzle, {"max_num_batched_tokens": 24}, "mean_finish is 17.4"),
        (ch07.puzzle, {"long_prefill_token_threshold": 8}, "slowest_first_token is 12"),
        (ch08.puzzle, FCFSPolicy, "computed_tokens is 84"),
    ],
)
def test_a_puzzle_says_what_is_missed(puzzle, answer, explanation):
    with pytest.raises(NotYet) as caught:
        puzzle.check(answer)
    assert explanation in str(caught.value)
