"""The bank of wrong answers: each is refused, and nearly all are told the reason."""

import inspect
import math
import sys

import pytest
from exercise_kinds import KINDS

from minivllm.course.asking.answers import NotYet
from minivllm.course.asking.function_exercise import FunctionExercise
from minivllm.course.asking.texts import read_toml
from minivllm.course.chapters import CHAPTERS, EXERCISES
from minivllm.course.labs import MILESTONES
from minivllm.exercises import labs
from minivllm.scheduling.policies import FCFSPolicy, SchedulingPolicy

BANK = [
    (name if name.startswith("labs.") else f"ch{number}.{name}", number, *row)
    for number in CHAPTERS
    for name, rows in read_toml(f"ch{number}/wrong_answers.toml").items()
    for row in rows
]
LABS = {f"labs.{name}" for name in MILESTONES} - {"labs.mini_engine"}


def norm(x):
    return (x**2).sum(-1, keepdims=True) ** 0.5


def read(answer, exercises=None, lab=None):
    """Value of an answer, which is a line of Python."""

    def spoilt(right, wrong):
        source = inspect.getsource(lab.solution)
        assert source.count(right) == 1
        names = dict(vars(sys.modules[lab.solution.__module__]))
        exec(source.replace(right, wrong), names)
        return names[lab.solution.__name__]

    names = {"SchedulingPolicy": SchedulingPolicy, "FCFSPolicy": FCFSPolicy, "math": math}
    return eval(answer, {**names, "norm": norm, "spoilt": spoilt, "exercises": exercises})


@pytest.mark.parametrize(("name", "number", "seed", "answer", "reason"), BANK)
def test_a_wrong_answer_is_told_the_reason(
    name, number, seed, answer, reason, capsys, tmp_path, monkeypatch
):
    """The words are in the first verdict: nothing has to be missed twice to learn why."""
    if name in KINDS:
        with pytest.raises(NotYet) as caught:
            KINDS[name](seed).check(read(answer, EXERCISES[number]))
        verdict = str(caught.value)
    else:
        monkeypatch.setenv("MINIVLLM_CACHE_ROOT", str(tmp_path))
        lab = getattr(labs, name.removeprefix("labs."))
        lab.grade(read(answer, EXERCISES[number], lab), seed)
        verdict = capsys.readouterr().out
        assert "FAILED" in verdict or verdict.startswith("not yet: ")
    assert reason in verdict


def test_the_bank_has_every_kind_and_nine_of_ten_reasons():
    assert {name for name, *_ in BANK} == KINDS.keys() | LABS
    assert len(BANK) >= 300
    told = sum(reason != "" for *_, reason in BANK)
    assert told >= 0.9 * len(BANK)


def test_two_of_five_ask_for_code():
    """A function, a policy or a piece of the engine, and not only numbers."""
    drawn = [kind(0) for kind in KINDS.values()]
    code = [
        e
        for e in drawn
        if isinstance(e, FunctionExercise) or "policy" in e.given.get("may_set", ())
    ]
    assert len(code) + len(LABS) >= 0.4 * (len(drawn) + len(LABS))
