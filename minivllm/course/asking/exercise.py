"""Exercise: one question, a check that explains, a hint and a folded solution; drawn by a seed."""

from __future__ import annotations

import html
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, update_wrapper
from pprint import pformat
from random import Random
from typing import Any, Protocol

from minivllm.course.asking.answers import NotYet, is_blank
from minivllm.course.asking.gradebook import Latest, note_points
from minivllm.course.asking.texts import read_toml, unwrap
from minivllm.lab.translation import translated
from minivllm.lab.viz.draw.wording import wrap
from minivllm.utils.validation import check, is_int

_missed: set[tuple[str, str]] = set()  # an exercise as it is shown, what was wrong with an answer


@dataclass(eq=False, repr=False)
class Exercise:
    """One exercise.

    Args:
        judge: called with an answer and what is given; raises ``NotYet`` with an explanation
            unless the answer is right; returns what it teaches.
        hint: one sentence.
        solution: a function of what is given that returns a right answer.
        question: what is asked.
        given: the names and numbers of the problem, for the reader's own code, too.
        effort: how difficult and how long it is, and the next one of its kind.
        name, seed: of its kind, and what it was drawn by.
        why: the reasoning that leads to the solution, whatever the numbers are.
    """

    judge: Callable[..., str]
    hint: str
    solution: Callable[..., Any]
    question: str
    given: dict[str, Any] = field(default_factory=dict)
    effort: str = ""
    name: str = ""
    seed: int | str = 0
    why: str = ""

    def check(self, answer: Any) -> str:
        """Return what a right answer teaches.

        Raises:
            NotYet: for any other answer, of whatever type, saying what is wrong with it.
        """
        try:
            return self.judge(answer, **self.given)
        except NotYet:
            raise
        except Exception as error:  # there is no end to what may be handed in
            reason = f"{type(error).__name__}: {error}"
            raise NotYet(f"this answer cannot be read ({reason}).") from error

    def grade(self, answer: Any) -> None:
        """Print whether the answer is right, and if not, what is wrong. None is no answer yet."""
        points = 0
        if is_blank(answer):
            verdict = "not solved yet"
        else:
            try:
                verdict = f"right: {self.check(answer)}"
                points = 1
            except NotYet as explanation:
                verdict = f"not yet: {self._told(explanation)}"
        print(verdict)
        note_points(self.name, self.seed, points, verdict, is_blank(answer))

    def _told(self, explanation: NotYet) -> str:
        """Return what is wrong; the right value only if it was missed before."""
        if explanation.value is None:
            return str(explanation)
        place = (repr(self), str(explanation))
        if place in _missed:
            return explanation.value
        _missed.add(place)
        return f"{explanation} (If you miss it again, the value is shown.)"

    def solve(self) -> Any:
        """A right answer."""
        return self.solution(**self.given)

    def show_help(self) -> Folded:
        """The hint, and the reasoning with the solution's source, each folded."""
        source = textwrap.dedent(inspect.getsource(self.solution))
        reasoning = "\n".join(wrap(self.why, 90))
        return Folded({"Hint": self.hint, "Solution": f"{reasoning}\n\n{source}"})

    def __repr__(self) -> str:
        """The question, below it what is given, and at the end the effort."""
        lines = wrap(self.question, 90)
        for name, value in self.given.items():
            text = pformat(value, width=90 - len(name), compact=True, sort_dicts=False)
            lines.append(f"    {name} = " + text.replace("\n", "\n" + " " * (len(name) + 7)))
        return "\n".join([*lines, self.effort]).rstrip()


class Askable(Protocol):
    """Anything with a question that can be graded: an exercise, a lab or a quiz."""

    def grade(self, answer: Any) -> None: ...

    def show_help(self) -> Folded: ...


def ask(exercise: Askable, answer: Any = None) -> None:
    """Display an exercise, grade an answer, and fold the hint and the solution below it.

    Args:
        exercise: of a chapter, drawn by a seed, ``ask(ch05.puzzle(seed=0), my_policy)``; a lab,
            ``ask(labs.cap, my_cap)``; or a quiz, ``ask(quiz["05"], "a b c a b")``.
        answer: None is no answer yet. ``labs.cap.solution`` shows what a pass looks like.

    Raises:
        ValueError: for what cannot be asked, such as ``ch05.puzzle`` without a seed.
    """
    from IPython.display import display

    known = hasattr(exercise, "grade") and hasattr(exercise, "show_help")
    check(known, "exercise", exercise, 'an exercise (ch05.puzzle(seed=0)), a lab or quiz["05"]')
    display(exercise)
    exercise.grade(answer)
    Latest.asked = (exercise, answer)
    display(exercise.show_help())


def points(exercise: Askable, answer: Any) -> float:
    """Points of an answer, up to 1, without a word: the locked cell of a handout gives them.

    Raises:
        NotYet: if there are none.
        ValueError: for what cannot be asked.
    """
    from IPython.utils.capture import capture_output

    check(hasattr(exercise, "grade"), "exercise", exercise, "an exercise, a lab or a quiz")
    # a lab takes long, and the cell above has just graded it; what is printed here would cost
    # the point in nbgrader
    if not (Latest.asked[0] is exercise and Latest.asked[1] is answer):
        with capture_output():
            exercise.grade(answer)
        Latest.asked = (exercise, answer)
    entry = Latest.entry
    if not entry["points"]:
        raise NotYet(f"no point for {entry['exercise']}; the cell above says why.")
    return entry["points"]


def effort(difficulty: int, minutes: int, again: str) -> str:
    """The line below every exercise and lab; ``again`` is the call that gives another one."""
    return f"Difficulty {difficulty} of 5, about {minutes} minutes. Then without help: {again}."


@cache
def _reasoning(chapter: str) -> dict[str, str]:
    """By kind, a paragraph of the chapter's ``why.toml``."""
    return read_toml(f"{chapter}/why.toml")


class Seeded:
    """A kind of exercise: called with a seed, it draws one.

    The same seed gives the same problem, on every machine; another one a fresh one. A string is a
    seed, too: with a student's number, ``ch03.translation(seed="20260123")``, each has their own.

    Args:
        draw: makes an exercise from random numbers.
        difficulty: of 5.
        minutes: about how long it takes.
    """

    def __init__(self, draw: Callable[[Random], Exercise], difficulty: int, minutes: int):
        update_wrapper(self, draw)
        self.draw = draw
        self.difficulty = difficulty
        self.minutes = minutes
        self.chapter = draw.__module__.split(".")[-2]  # the folder's name
        self.name = f"{self.chapter}.{draw.__name__}"

    def __call__(self, seed: int | str = 0) -> Exercise:
        """Draw an exercise. A text is a seed, too: a student's number, in a class."""
        number = isinstance(seed, str) and seed.isalnum() and seed.isascii()
        allowed = "an integer of at least 0, or letters and digits"
        check(number or is_int(seed, 0), "seed", seed, allowed)
        exercise = self.draw(Random(f"minivllm.exercises.{self.name} {seed}"))
        following = repr(f"{seed}b") if number else seed + 1
        exercise.name = self.name
        exercise.seed = seed
        exercise.effort = effort(self.difficulty, self.minutes, f"{self.name}(seed={following})")
        exercise.why = unwrap(_reasoning(self.chapter)[self.draw.__name__])
        return exercise

    def __repr__(self) -> str:
        """The call that makes one, and what it asks."""
        return f"{self.name}(seed=0) is an exercise. {self.__doc__}"


def seeded(*, difficulty: int, minutes: int) -> Callable[[Callable[[Random], Exercise]], Seeded]:
    """Turn a function that draws an exercise into a kind of exercise, made from a seed."""

    def decorate(draw: Callable[[Random], Exercise]) -> Seeded:
        return Seeded(draw, difficulty, minutes)

    return decorate


class Folded:
    """Texts that a reader opens with a click; in plain text only their titles are seen."""

    def __init__(self, texts: dict[str, str]):
        self.texts = texts

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        folded = [
            f"<details><summary>{translated(title)}</summary><pre>{html.escape(text)}</pre></details>"
            for title, text in self.texts.items()
        ]
        return {"text/html": "".join(folded), "text/plain": repr(self)}

    def __repr__(self) -> str:
        return f"<folded: {', '.join(map(translated, self.texts))}>"
