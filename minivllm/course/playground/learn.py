"""Labs, quizzes and exercises of the page: asked, and graded as the notebooks grade them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

from minivllm.course import labs
from minivllm.course.asking.exercise import Seeded
from minivllm.course.asking.gradebook import Latest
from minivllm.course.asking.quiz import QUIZZES, Question
from minivllm.course.chapters import EXERCISES
from minivllm.course.grading.function_lab import FunctionLab
from minivllm.course.grading.milestones import (
    begin_progress,
    format_progress,
    note_peek,
    parse_progress,
    progress_file,
    read_progress,
    write_progress,
)
from minivllm.course.grading.stubs import stub_source
from minivllm.course.loop import help_of
from minivllm.course.playground.readers_code import InReadersCode, Printed, run_source, value_of
from minivllm.lab.translation import translated
from minivllm.lab.viz.draw.wording import pad
from minivllm.utils.validation import check, is_int, is_one_of

# Labs whose checks need no torch, and the one exercise that needs NumPy.
LABS = ("schedule", "cap", "propose", "tool_stream", "segments", "join", "quantile", "mean_rows")
WITH_NUMPY = ("chA2.add_norm",)


def contents() -> dict[str, Any]:
    """Labs by name, and the chapters with the names of their exercises; each has a quiz, too."""
    titles = {name: f"{_lab(name).notebook}: {name}" for name in LABS}
    chapters = [[number, [kind.name for kind in _kinds(number)]] for number in QUIZZES]
    return {"labs": titles, "chapters": chapters}


def lab(name: str) -> dict[str, Any]:
    """A lab: its task, and the stub to begin with.

    Raises:
        ValueError: for another lab.
    """
    asked = _lab(name)
    return {"task": asked.task, "stub": stub_source(asked.stub)}


def lab_progress(kept: str = "") -> dict[str, Any]:
    """Progress of the reader: a line a lab of the page, the next one, and the text of the file.

    Args:
        kept: the file as the page keeps it, since a web worker forgets its own. It is taken where
            there is no file yet. "" is none.

    Raises:
        ValueError: for a file that is broken.
    """
    _take(kept)
    progress = read_progress()
    lines = []
    for name in LABS:
        state = f"passed {progress.passed[name]}" if name in progress.passed else "-"
        looks = progress.peeks.get(name, 0)
        lines.append(f"{name:12} {pad(state, 17)} {looks or ''}".rstrip())
    left = [name for name in LABS if name not in progress.passed]
    text = "\n".join([f"{'lab':12} {'':17} looks at help", *lines])
    return {"text": text, "next": left[0] if left else None, "file": format_progress(progress)}


def peek_lab(name: str, kept: str = "") -> dict[str, Any]:
    """One more help for a lab, which is counted: the hint, the idea, the solution.

    Raises:
        ValueError: for another lab, or a progress file that is broken.
    """
    helps = list(help_of(_lab(name)).items())
    _take(kept)
    begin_progress()
    looks = note_peek(name)
    seen = {translated(title): text for title, text in helps[:looks]}
    return {"help": seen, "file": format_progress(read_progress())}


def open_progress(file: str) -> dict[str, Any]:
    """Go on from a progress file of the reader's, in place of the one that is there.

    Raises:
        ValueError: for a text that is no progress file; nothing has changed then.
    """
    progress = parse_progress(file, Path("the file"))
    write_progress(progress_file(), progress)
    return lab_progress()


def _take(kept: str) -> None:
    if kept and not progress_file().exists():
        write_progress(progress_file(), parse_progress(kept, Path("what this page keeps")))


def grade_lab(name: str, source: str, seed: int = 0, kept: str = "") -> dict[str, Any]:
    """Grade the reader's function of a lab. With seed 0, "schedule" is held to vLLM's recordings.

    Returns: "text", the verdict; "right", None of a stub that is not filled; "file", the progress
        file behind it; and "equal", where the lab is held to steps: at how many of them the
        function is right, and how many there are.

    Raises:
        ValueError: for another lab, a seed that is none, or a progress file that is broken.
        InReadersCode: if the code cannot be compiled, or has no such function.
    """
    asked = _lab(name)
    check(is_int(seed, 0), "seed", seed, "a whole number of at least 0")
    function = run_source(source).get(asked.stub.__name__)
    if function is None:
        raise InReadersCode(f"define a function {asked.stub.__name__}.", None)
    _take(kept)
    graded = _graded(lambda: asked.grade(function, seed))
    graded["right"] = _is_right()
    if asked.steps is not None:
        with suppress(NotImplementedError), redirect_stdout(Printed()):
            graded["equal"] = asked.share(function, seed)
    return {**graded, "file": format_progress(read_progress())}


def quiz(chapter: str) -> list[dict[str, Any]]:
    """Questions of a chapter: text, choices by letter, and what is told of each choice.

    Raises:
        ValueError: for a chapter without a quiz.
    """
    check(is_one_of(chapter, QUIZZES), "chapter", chapter, "one of " + ", ".join(QUIZZES))
    return [
        {"text": asked.text, "choices": asked.choices, "verdicts": _verdicts(asked)}
        for asked in QUIZZES[chapter].questions
    ]


def _verdicts(asked: Question) -> dict[str, dict[str, Any]]:
    """By letter whether it is right, and why or why not, as the notebooks print it."""
    return {
        letter: {
            **_graded(lambda letter=letter: asked.grade(letter)),
            "right": asked.is_right(letter),
        }
        for letter in asked.choices
    }


def exercise(name: str, seed: int = 0) -> dict[str, Any]:
    """An exercise, drawn by a seed: its text, and a hint and a solution.

    Raises:
        ValueError: for an unknown name, or a seed that is none.
    """
    drawn = _kind(name)(seed)
    texts = drawn.show_help().texts
    return {"text": repr(drawn), "help": {translated(name): text for name, text in texts.items()}}


def grade_exercise(name: str, seed: int, source: str) -> dict[str, Any]:
    """Grade an answer to an exercise: the value of the last line of the reader's code.

    Returns: "text", the verdict, and "right", None of no answer.

    Raises:
        ValueError: as ``exercise``.
        InReadersCode: if the code cannot be compiled or raises.
    """
    drawn = _kind(name)(seed)
    value = value_of(source)
    return {**_graded(lambda: drawn.grade(value)), "right": _is_right()}


def _is_right() -> bool | None:
    """True if the answer that was graded last is right; None of none."""
    entry = Latest.entry
    return None if entry["is_blank"] else entry["points"] == 1


def _lab(name: str) -> FunctionLab:
    check(is_one_of(name, LABS), "lab", name, "one of " + ", ".join(LABS))
    return getattr(labs, name)


def _kinds(chapter: str) -> list[Seeded]:
    """Kinds of exercises of a chapter that need neither torch nor NumPy."""
    return [
        kind
        for kind in vars(EXERCISES[chapter]).values()
        if isinstance(kind, Seeded)
        and kind.name.startswith(f"ch{chapter}.")
        and kind.name not in WITH_NUMPY
    ]


def _kind(name: str) -> Seeded:
    known = {kind.name: kind for chapter in QUIZZES for kind in _kinds(chapter)}
    check(is_one_of(name, known), "exercise", name, "one of " + ", ".join(known))
    return known[name]


def _graded(grade: Callable[[], None]) -> dict[str, Any]:
    """Text that grading prints, the reader's own prints included."""
    with redirect_stdout(Printed()) as said:
        try:
            grade()
        except BaseException as error:  # the reader's function may exit
            raise InReadersCode.of(error) from error
    return {"text": said.getvalue().rstrip()}
