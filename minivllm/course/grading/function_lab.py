"""FunctionLab: a lab whose answer is a function, and what the checks of such labs share.

Each check gets the function and a seed, which draws the inputs; seed 0 stands for vLLM's own
recordings where there are some. It raises ``Fault`` for the first thing that is wrong. Torch and
Triton are imported only when a lab is graded: the rest of this package runs without them.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from minivllm.course.asking.answers import is_blank
from minivllm.course.asking.exercise import Folded, effort
from minivllm.course.asking.gradebook import is_grading, note_points
from minivllm.course.grading.milestones import note_passed
from minivllm.course.grading.run import Fault, describe_error
from minivllm.course.grading.stubs import stub_source
from minivllm.course.grading.verdicts import Verdict
from minivllm.lab.viz.draw.wording import sentence, wrap
from minivllm.utils.validation import check as validate
from minivllm.utils.validation import is_int


class WrongEntry(Fault):
    """One entry of an answer is wrong; the right value is told on a second miss."""

    def __init__(self, which: str, value: str, figure: Any = None):
        super().__init__(which, figure)
        self.value = value


@dataclass(frozen=True)
class Passed:
    """An answer is right.

    Args:
        text: what it was held to.
        figure: what is drawn below it, if anything is.
    """

    text: str
    figure: Any = None


def call(function: Callable, *args, **kwargs) -> Any:
    """Call the reader's function; an error that it raises becomes a Fault."""
    try:
        return function(*args, **kwargs)
    except Exception as error:  # there is no end to what a function may do
        while isinstance(error.__cause__, Exception):  # Triton's interpreter wraps what it meets
            error = error.__cause__
        if isinstance(error, (NotImplementedError, Fault)):
            raise error from None
        raise Fault(describe_error(error)) from error


def check_tensor(
    where: str, function: Callable, args: tuple, right, explain: Callable[[Any, int], str]
) -> None:
    """The reader's tensor beside the right one, entry by entry.

    Args:
        where: what a wrong entry is introduced with.
        function, args: the reader's, and what it is called with.
        right: the right tensor.
        explain: called with a wrong tensor and the first wrong entry; returns why it is wrong.
    """
    import torch

    got = call(function, *args)
    if not isinstance(got, torch.Tensor) or got.shape != right.shape:
        raise Fault(f"{where}: return a tensor of shape {list(right.shape)}")
    for index, (mine, theirs) in enumerate(zip(got.tolist(), right.tolist(), strict=True)):
        if mine != theirs and not math.isclose(mine, theirs, rel_tol=1e-6, abs_tol=1e-9):
            wrong = f"{where}: entry {index} is {mine:.4g}, {explain(got, index)}"
            raise WrongEntry(wrong, f"{theirs:.4g}")


def shorten(tensor) -> list[float]:
    return [round(x, 3) for x in tensor.tolist()]


def how_to_begin(lab: str, what: str, mine: str) -> str:
    """Return the sentence that ends every lab's task."""
    return f"Copy this {what} into a cell, fill it, and call ask({lab}, {mine})."


def with_stub(task: str, effort: str, stub: Any) -> str:
    """Text of a lab: the task and the effort as a comment, and the stub to copy."""
    lines = [f"# {line}" for line in [*wrap(task, 90), effort]]
    return "\n".join(lines) + f"\n\n{stub_source(stub)}"


@dataclass(frozen=True, repr=False)
class FunctionLab:
    """One function of the engine to be written by the reader.

    Args:
        notebook: the number of the one that it belongs to.
        task: one sentence; how to begin is added to it.
        hint: one sentence.
        difficulty: of 5.
        minutes: about how long it takes.
        stub: the function to begin with; its docstring is the specification.
        check: called with a function and a seed; raises ``Fault`` unless the function is right;
            returns what it was held to, alone or as ``Passed`` with a figure.
        steps: called with a seed; the steps that it is held to. None: it is not held to steps.
        check_step: called with a function and a step; raises ``Fault`` unless it is right there.
        solution_module: that of a solution which needs what the other labs do not; else it is
            beside the stub.
    """

    notebook: str
    task: str
    hint: str
    difficulty: int
    minutes: int
    stub: Callable
    check: Callable[[Callable, int], str | Passed]
    steps: Callable[[int], Iterable] | None = None
    check_step: Callable[[Callable, Any], None] | None = None
    solution_module: str = ""
    _misses: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.stub.__name__.removeprefix("my_")

    @property
    def solution(self) -> Callable:
        """A function that passes."""
        module = import_module(self.solution_module or self.stub.__module__)
        return getattr(module, self.name)

    def verdict(self, function: Any, seed: int = 0) -> Verdict:
        """Verdict of the check. A wrong entry is named at first, its value when missed again.

        Args:
            function: the reader's.
            seed: another one is another lot of inputs.

        Raises:
            ValueError: for what is no seed.
            NotImplementedError: if nothing is written yet.
        """
        validate(is_int(seed, 0), "seed", seed, "an integer of at least 0")
        if not callable(function):
            return Verdict(self.name, "FAILED", f"give a function like {self.stub.__name__}.")
        try:
            found = self.check(function, seed)
        except WrongEntry as wrong:
            text = f"{wrong}"
            if text in self._misses:
                text += f"; {wrong.value} is right"
            self._misses.append(str(wrong))
            return Verdict(self.name, "FAILED", sentence(text), wrong.figure)
        except Fault as fault:
            return Verdict(self.name, "FAILED", sentence(fault), fault.figure)
        passed = found if isinstance(found, Passed) else Passed(found)
        return Verdict(self.name, "passed", passed.text, passed.figure)

    def share(self, function: Callable, seed: int) -> tuple[int, int]:
        """Count the steps at which the reader's function is right, and all of them.

        Raises:
            NotImplementedError: if nothing is written yet.
        """
        assert self.steps is not None, "it is held to steps"
        assert self.check_step is not None, "it is held to steps"
        equal = 0
        total = 0
        for step in self.steps(seed):
            total += 1
            with suppress(Fault):
                self.check_step(function, step)
                equal += 1
        return equal, total

    def grade(self, function: Any, seed: int = 0) -> None:
        """Print what the check says of this function, on the inputs of this seed."""
        try:
            verdict = None if is_blank(function) else self.verdict(function, seed)
        except NotImplementedError:
            verdict = None
        if verdict is None:
            print("not solved yet")
            note_points(f"labs.{self.name}", seed, 0, "not solved yet", is_blank=True)
            return
        print(verdict)
        if verdict.figure is not None:
            from IPython.display import display

            display(verdict.figure)
        is_shipped = function is self.solution
        passed = verdict.outcome == "passed" and not is_shipped
        note_points(f"labs.{self.name}", seed, passed, str(verdict), is_shipped)
        if passed:
            note_passed(self.name)

    def show_pass(self) -> None:
        """Print what a pass looks like: the verdict of the solution. It counts for no one."""
        print("left out" if is_grading() else self.verdict(self.solution))

    def show_help(self) -> Folded:
        """The hint and the solution's source, each folded."""
        source = inspect.getsource(getattr(self.solution, "fn", self.solution))
        return Folded({"Hint": self.hint, "Solution": source})

    def __repr__(self) -> str:
        """The task, and the stub to copy."""
        mine = self.stub.__name__
        task = f"{self.task} {how_to_begin(f'labs.{self.name}', 'function', mine)}"
        again = f"labs.{self.name}.grade({mine}, seed=1)"
        return with_stub(task, effort(self.difficulty, self.minutes, again), self.stub)
