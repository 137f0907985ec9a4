"""Every solution passes its check, and the usual wrong answers are told what is wrong."""

import html

import pytest

from minivllm.exercises import ch00, ch01
from minivllm.exercises.exercise import Exercise

ALL = {
    f"{module.__name__.rsplit('.', 1)[1]}.{name}": exercise
    for module in (ch00, ch01)
    for name, exercise in vars(module).items()
    if isinstance(exercise, Exercise)
}


@pytest.mark.parametrize("name", ALL)
def test_the_solution_is_right(name, capsys):
    exercise = ALL[name]
    exercise.grade(exercise.solution())
    exercise.grade(None)
    assert capsys.readouterr().out.splitlines()[0].startswith("right: ")
    shown = exercise.show_help()._repr_mimebundle_()["text/html"]
    assert shown.count("<details>") == 2
    assert html.escape(exercise.hint) in shown
    assert exercise.solution.__name__ in shown


@pytest.mark.parametrize(
    ("exercise", "answer", "explanation"),
    [
        (ch00.blocks, 4, "you counted the last token"),
        (ch00.blocks, 2, "2 blocks hold 32 positions"),
        (ch00.steps, 3, "too few"),
        (ch00.steps, 12, "almost"),
        (ch00.steps, 99, "too many"),
        (ch00.pool, 5, "at least one sequence"),
        (ch00.pool, 20, "preempts"),
        (ch00.pool, 500, "499 blocks would do"),
        (ch01.bytes_per_token, 401408, "28 query heads"),
        (ch01.bytes_per_token, 28672, "K or V"),
        (ch01.work, lambda p, n, k: p + n, "should be"),
        (ch01.work, lambda p, n, k: 2 * p + n - 1, "before the loss, too"),
        (ch01.work, lambda p: p, "raised TypeError"),
        (ch01.design, (8, 2), "needs 100 GiB"),
        (ch01.design, (1, 1), "twice as much"),
        (ch01.design, 7, "give a pair"),
        (ch01.design, (4,), "give a pair"),
        (ch00.steps, "x", "whole number"),
        (ch01.design, (3, 2), "divide 32"),
    ],
)
def test_a_wrong_answer_is_told_why(exercise, answer, explanation, capsys):
    exercise.grade(answer)
    out = capsys.readouterr().out
    assert out.startswith("not yet: ")
    assert explanation in out
