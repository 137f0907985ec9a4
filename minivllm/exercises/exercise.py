"""Exercise: one question, a check that explains, a hint and a folded solution."""

from __future__ import annotations

import html
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from minivllm.validation import is_int


class NotYet(Exception):
    """An answer is wrong; the message says in which way."""


def whole_number(answer: Any) -> int:
    """The answer, if it is a whole number; else a word about that."""
    if not is_int(answer):
        raise NotYet("give a whole number.")
    return answer


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    Args:
        check: raises ``NotYet`` with an explanation unless its argument is a right answer; returns
            what there is to learn from it.
        hint: one sentence.
        solution: a function without arguments that returns a right answer.
    """

    check: Callable[[Any], str]
    hint: str
    solution: Callable[[], Any]

    def grade(self, answer: Any) -> None:
        """Print whether the answer is right, and if not, what is wrong. None is no answer yet."""
        if answer is None:
            print("not solved yet")
            return
        try:
            print(f"right: {self.check(answer)}")
        except NotYet as explanation:
            print(f"not yet: {explanation}")

    def show_help(self) -> Folded:
        """The hint and the solution's source, each folded."""
        source = textwrap.dedent(inspect.getsource(self.solution))
        return Folded({"Hint": self.hint, "Solution": source})


class Folded:
    """Texts that a reader opens with a click; in plain text only their titles are seen."""

    def __init__(self, texts: dict[str, str]):
        self.texts = texts

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        folded = [
            f"<details><summary>{title}</summary><pre>{html.escape(text)}</pre></details>"
            for title, text in self.texts.items()
        ]
        return {"text/html": "".join(folded), "text/plain": f"<folded: {', '.join(self.texts)}>"}
