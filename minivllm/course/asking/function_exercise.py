"""Function exercise: the answer is a function, and is called with arguments that a seed draws."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from types import MappingProxyType
from typing import Any

from minivllm.course.asking.answers import NotYet
from minivllm.course.asking.exercise import Exercise

NONE: Mapping[str, Callable] = MappingProxyType({})


def no_more_to_say(arguments: tuple, got: Any, right: Any) -> None:
    """Explain nothing beyond the mistakes that are known by name."""


class FunctionExercise(Exercise):
    """An exercise whose answer is a function.

    Args:
        question, hint: as of an exercise.
        solution: a function without arguments that returns a right function.
        calls: the arguments of each call that a reader's function is graded with. The first three
            are shown.
        learnt: what a right answer teaches.
        mistakes: by explanation, a function that makes this mistake.
        explain: called with arguments, a wrong answer and the right one; raises ``NotYet`` if it
            knows the mistake.
        otherwise: called with the same if no mistake fits; returns why the answer is wrong, or "".
    """

    def __init__(
        self,
        question: str,
        hint: str,
        solution: Callable[[], Callable],
        *,
        calls: list[tuple],
        learnt: str,
        mistakes: Mapping[str, Callable] = NONE,
        explain: Callable[[tuple, Any, Any], None] = no_more_to_say,
        otherwise: Callable[[tuple, Any, Any], str | None] = no_more_to_say,
    ):
        super().__init__(self._judge, hint, solution, question, {"first_calls": calls[:3]})
        self.calls = calls
        self.learnt = learnt
        self.mistakes = mistakes
        self.explain = explain
        self.otherwise = otherwise

    def solve(self) -> Callable:
        return self.solution()

    def _judge(self, answer: Any, **_) -> str:
        solution = self.solve()
        if not callable(answer):
            raise NotYet(f"give a function like {solution.__name__}.")
        for arguments in self.calls:
            call = f"{solution.__name__}({', '.join(map(repr, arguments))})"
            right = solution(*arguments)
            try:
                got = _called(answer, arguments, right)
                if bool(got == right):
                    continue
                self.explain(arguments, got, right)
                mistake = self._mistake(answer, arguments, got, right)
                mistake = mistake or self.otherwise(arguments, got, right)
            except NotYet:
                raise
            except Exception as error:  # there is no end to what a function may do
                raise NotYet(f"{call} raised {error!r}.") from error
            if mistake:
                raise NotYet(f"{call} is not {got!r}: {mistake}")
            raise NotYet(
                f"{call} is not {got!r}.", f"{call} should be {right!r}, yours says {got!r}."
            )
        return self.learnt

    def _mistake(self, answer: Callable, arguments: tuple, got: Any, right: Any) -> str | None:
        """Explanation of a wrong result; of several, the one that fits most other calls, too.

        In a pair the first number that is wrong is explained.
        """
        wrong = _first_wrong(got, right)

        def calls_alike(why: str) -> int:
            mistaken = self.mistakes[why]
            results = ((_called(answer, each, mistaken(*each)), each) for each in self.calls[:20])
            return sum(bool(result == mistaken(*each)) for result, each in results)

        found = [
            why
            for why, mistaken in self.mistakes.items()
            if _first_wrong(mistaken(*arguments), right) == wrong
        ]
        return max(found, key=calls_alike) if len(found) > 1 else next(iter(found), None)


def _first_wrong(got: Any, right: Any) -> Any:
    """A result; of a pair its first wrong number, and the place of it."""
    if not (isinstance(got, tuple) and isinstance(right, tuple) and len(got) == len(right)):
        return got
    pairs = enumerate(zip(got, right, strict=True))
    return next(((i, one) for i, (one, other) in pairs if one != other), None)


def _called(answer: Callable, arguments: tuple, like: Any) -> Any:
    """Result of a reader's function; a list is a tuple and a tuple a list, where one is asked."""
    got = answer(*deepcopy(arguments))
    if isinstance(like, list) and isinstance(got, Iterable) and not isinstance(got, str):
        return list(got)
    return tuple(got) if isinstance(like, tuple) and isinstance(got, list) else got
