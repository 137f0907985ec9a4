"""The quiz: five questions for each notebook, with a reason for every wrong choice.

``ask(quiz["03"])`` shows the questions of notebook 03, which are in ``ch03/quiz.toml``, and
``ask(quiz["03"], "b a c d a")`` grades letters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from minivllm.course.asking.answers import is_blank
from minivllm.course.asking.exercise import Folded
from minivllm.course.asking.gradebook import note_points
from minivllm.course.asking.question import Question
from minivllm.course.asking.texts import COURSE, read_toml

__all__ = ["QUIZZES", "Question", "Quiz", "Quizzes"]


class Quiz:
    """Questions of one notebook."""

    def __init__(self, number: str, questions: list[Question]):
        self.number = number
        self.questions = questions

    def grade(self, letters: Any) -> None:
        """Print for each letter whether it is right and why or why not; then how many are.

        Args:
            letters: one a question, as ``"b a c d a"`` or as a list. None is no answer yet.
        """
        asked = self.questions
        if is_blank(letters):
            print("not answered yet")
            note_points(f"quiz.{self.number}", 0, 0, "not answered yet", is_blank=True)
            return
        given = letters.replace(",", " ").split() if isinstance(letters, str) else letters
        if not isinstance(given, (list, tuple)) or len(given) != len(asked):
            print(
                text := f'not yet: give {len(asked)} letters, like "{" ".join("a" * len(asked))}".'
            )
            note_points(f"quiz.{self.number}", 0, 0, text)
            return
        for number, (question, letter) in enumerate(zip(asked, given, strict=True), start=1):
            print(end=f"{number}. ")
            question.grade(letter)
        right = sum(q.is_right(letter) for q, letter in zip(asked, given, strict=True))
        print(result := f"{right} of {len(asked)}")
        note_points(f"quiz.{self.number}", 0, right / len(asked), result)

    def show_help(self) -> Folded:
        """The right letters with their reasons, folded."""
        lines = [f"{n}. {q.answer}: {q.because}" for n, q in enumerate(self.questions, start=1)]
        return Folded({"Answers": "\n".join(lines)})

    def __repr__(self) -> str:
        """The questions with their choices."""
        return "\n\n".join(f"{n}. {q!r}" for n, q in enumerate(self.questions, start=1))


class Quizzes(Mapping[str, Quiz]):
    """Quizzes by the number of their notebook, "00" to "A2"; a file is read when it is asked."""

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(p.parent.name.removeprefix("ch") for p in COURSE.glob("ch*/quiz.toml")))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, notebook: str) -> Quiz:
        if notebook not in list(self):
            raise KeyError(f"notebook {notebook!r} has no quiz; these have: {', '.join(self)}")
        entries = read_toml(f"ch{notebook}/quiz.toml")["questions"]
        return Quiz(notebook, [Question.parse(entry) for entry in entries])

    def ask(self, notebook: str) -> None:
        """Print the questions of a notebook, as in a terminal."""
        print(self[notebook])

    def grade(self, notebook: str, letters: Any) -> None:
        """Grade letters for the questions of a notebook; see ``Quiz.grade``."""
        self[notebook].grade(letters)


QUIZZES = Quizzes()
