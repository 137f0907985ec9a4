"""Function exercise: the answer is a function, and is called with arguments that a seed draws."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from minivllm.lab.exercises.answers import NotYet
from minivllm.lab.exercises.exercise import Exercise


def no_more_to_say(arguments: tuple, got: Any, right: Any) -> None:
    """Explain nothing: no mistake is known by name."""


class FunctionExercise(Exercise):
    """An exercise whose answer is a function.

    Args:
        question, hint: as of an exercise.
        solution: a function without arguments that returns a right function.
        calls: the arguments of each call that a reader's function is graded with. The first three
            are shown.
        learnt: what a right answer teaches.
        explain: called with arguments, a wrong answer and the right one; raises ``NotYet`` if it
            knows the mistake.
    """

    def __init__(
        self,
        question: str,
        hint: str,
        solution: Callable[[], Callable],
        *,
        calls: list[tuple],
        learnt: str,
        explain: Callable[[tuple, Any, Any], None] = no_more_to_say,
    ):
        super().__init__(self._judge, hint, solution, question, {"first_calls": calls[:3]})
        self.calls, self.learnt, self.explain = calls, learnt, explain

    def solve(self) -> Callable:
        return self.solution()

    def _judge(self, answer: Any, **_) -> str:
        solution = self.solve()
        if not callable(answer):
            raise NotYet(f"give a function like {solution.__name__}.")
        for arguments in self.calls:
            call = f"{solution.__name__}({', '.join(map(repr, arguments))})"
            try:
                got = answer(*deepcopy(arguments))
                right = solution(*arguments)
                same = (list(got) if isinstance(right, list) else got) == right
                same = bool(same)
            except Exception as error:  # there is no end to what a function may do
                raise NotYet(f"{call} raised {error!r}.") from error
            if not same:
                self.explain(arguments, got, right)
                raise NotYet(
                    f"{call} is not {got!r}.", f"{call} should be {right!r}, yours says {got!r}."
                )
        return self.learnt
