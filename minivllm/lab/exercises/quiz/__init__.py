"""The quiz: five questions for each notebook, with a reason for every wrong choice.

``quiz.ask("03")`` prints the questions of notebook 03, which are in ``ch03.toml``;
``quiz.grade("03", "b a c d a")`` answers them. A question alone is ``quiz.questions("03")[0]``, to
be graded by one letter.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from minivllm.lab.exercises.answers import is_blank
from minivllm.lab.exercises.quiz.question import Question
from minivllm.utils.validation import check

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["NOTEBOOKS", "Question", "ask", "grade", "questions"]

_FOLDER = Path(__file__).parent

# The notebooks that have a quiz, by their number: "00" to "A1".
NOTEBOOKS = sorted(path.stem.removeprefix("ch") for path in _FOLDER.glob("ch*.toml"))


def questions(notebook: str) -> list[Question]:
    """Return the five questions of a notebook.

    Raises:
        ValueError: if there is no such notebook.
    """
    check(notebook in NOTEBOOKS, "notebook", notebook, f"one of {', '.join(NOTEBOOKS)}")
    text = (_FOLDER / f"ch{notebook}.toml").read_text(encoding="utf-8")
    return [Question.parse(entry) for entry in tomllib.loads(text)["questions"]]


def ask(notebook: str) -> None:
    """Print the questions of a notebook with their choices."""
    print("\n\n".join(f"{n}. {q!r}" for n, q in enumerate(questions(notebook), start=1)))


def grade(notebook: str, letters: Any) -> None:
    """Print for each letter whether it is right and why or why not; then how many are.

    Args:
        notebook: its number, like "03".
        letters: one a question, as ``"b a c d a"`` or as a list. None is no answer yet.
    """
    asked = questions(notebook)
    if is_blank(letters):
        print("not answered yet")
        return
    given = letters.replace(",", " ").split() if isinstance(letters, str) else letters
    if not isinstance(given, (list, tuple)) or len(given) != len(asked):
        print(f'not yet: give {len(asked)} letters, like "{" ".join("a" * len(asked))}".')
        return
    for number, (question, letter) in enumerate(zip(asked, given, strict=True), start=1):
        print(end=f"{number}. ")
        question.grade(letter)
    right = sum(q.is_right(letter) for q, letter in zip(asked, given, strict=True))
    print(f"{right} of {len(asked)}")
