"""The bank of wrong answers: each is refused, and nearly all are told the reason."""

import inspect
import math
import os
import sys
import tempfile
from pathlib import Path

import pytest
from exercise_kinds import KINDS

from minivllm.course.asking.answers import NotYet
from minivllm.course.asking.function_exercise import FunctionExercise
from minivllm.course.asking.texts import read_toml
from minivllm.course.chapters import CHAPTERS, EXERCISES
from minivllm.course.labs import MILESTONES
from minivllm.exercises import labs
from minivllm.scheduling.policies import FCFSPolicy, SchedulingPolicy

os.environ.setdefault("TRITON_INTERPRET", "1")
BANK = [
    (name if name.startswith("labs.") else f"ch{number}.{name}", number, *row)
    for number in CHAPTERS
    for name, rows in read_toml(f"ch{number}/wrong_answers.toml").items()
    for row in rows
]
LABS = {f"labs.{name}" for name in MILESTONES} - {"labs.mini_engine"}


def norm(x):
    return (x**2).sum(-1, keepdims=True) ** 0.5


def from_file(source, name):
    """A kernel of this source; Triton reads it again from its file."""
    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:
        file.write(f"import triton\nimport triton.language as tl\n\n{source}")
    names = {"__name__": "mine"}
    exec(compile(Path(file.name).read_text(), file.name, "exec"), names)
    return names[name]


def read(answer, exercises=None, lab=None):
    """Value of an answer, which is a line of Python."""

    def spoilt(right, wrong):
        original = getattr(lab.solution, "fn", lab.solution)
        source = inspect.getsource(original)
        assert source.count(right) == 1
        source = source.replace(right, wrong)
        if original is not lab.solution:
            return from_file(source, original.__name__)
        names = dict(vars(sys.modules[lab.solution.__module__]))
        exec(source, names)
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


def test_nine_of_ten_wrong_kernels_are_told_why():
    """Beside those that are no kernel at all there are at least 15."""
    kernels = [row for row in BANK if row[0].startswith("labs.") and row[1] == "10"]
    written = [row for row in kernels if "spoilt" in row[3] or "def " in row[3]]
    assert len(written) >= 15
    assert sum(reason != "" for *_, reason in written) >= 0.9 * len(written)


def test_two_of_five_ask_for_code():
    """A function, a policy or a piece of the engine, and not only numbers."""
    drawn = [kind(0) for kind in KINDS.values()]
    code = [
        e
        for e in drawn
        if isinstance(e, FunctionExercise) or "policy" in e.given.get("may_set", ())
    ]
    assert len(code) + len(LABS) >= 0.4 * (len(drawn) + len(LABS))
