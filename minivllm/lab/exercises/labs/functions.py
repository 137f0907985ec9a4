"""Labs whose answer is a function: a plan, a cap, a merge, a filter, a guess, a mask, a parser."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from minivllm.lab.exercises.exercise import Folded, effort
from minivllm.lab.exercises.labs import function_checks as checks
from minivllm.lab.exercises.labs import function_solutions as solutions
from minivllm.lab.exercises.labs import function_stubs as stubs
from minivllm.lab.exercises.labs import serving_checks
from minivllm.lab.exercises.labs.grading import Verdict
from minivllm.lab.exercises.labs.milestones import note_passed
from minivllm.lab.exercises.labs.proposer_check import check_propose
from minivllm.lab.exercises.labs.run import Fault
from minivllm.lab.exercises.labs.stream_check import check_tool_stream
from minivllm.validation import check as validate
from minivllm.validation import is_int


def with_stub(task: str, effort: str, stub: Any) -> str:
    """What a lab shows: the task and the effort as a comment, and the stub to copy."""
    lines = [f"# {line}" for line in [*textwrap.wrap(task, 90), effort]]
    return "\n".join(lines) + f"\n\n{inspect.getsource(stub)}"


@dataclass(frozen=True, repr=False)
class FunctionLab:
    """One function of the engine to be written by the reader.

    Args:
        notebook: the number of the one that it belongs to.
        task: what is to be done.
        hint: one sentence.
        difficulty: of 5.
        minutes: about how long it takes.
        stub: the function to begin with; its docstring is the specification.
        check: called with a function and a seed; raises ``Fault`` unless the function is right;
            returns what it was held to.
    """

    notebook: str
    task: str
    hint: str
    difficulty: int
    minutes: int
    stub: Callable
    check: Callable[[Callable, int], str]
    _misses: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.stub.__name__.removeprefix("my_")

    @property
    def solution(self) -> Callable:
        """A function that passes."""
        if self.stub is stubs.my_online_softmax:  # needs Triton, which the others do not
            from minivllm.lab.exercises.labs.kernel_harness import online_softmax

            return online_softmax
        return getattr(solutions, self.name)

    def verdict(self, function: Any, seed: int = 0) -> Verdict:
        """What the check says. A wrong entry is named at first, its value when missed again.

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
            text = self.check(function, seed)
        except checks.WrongEntry as wrong:
            text = f"{wrong}"
            if text in self._misses:
                text += f"; {wrong.value} is right"
            self._misses.append(str(wrong))
            return Verdict(self.name, "FAILED", f"{text}.")
        except Fault as fault:
            return Verdict(self.name, "FAILED", f"{fault}.")
        return Verdict(self.name, "passed", text)

    def grade(self, function: Any, seed: int = 0) -> None:
        """Print what the check says of this function, on the inputs of this seed."""
        try:
            verdict = self.verdict(function, seed)
        except NotImplementedError:
            print("not solved yet")
            return
        print(verdict)
        if verdict.outcome == "passed" and function is not self.solution:
            note_passed(self.name)

    def show_help(self) -> Folded:
        """The hint and the solution's source, each folded."""
        source = inspect.getsource(getattr(self.solution, "fn", self.solution))
        return Folded({"Hint": self.hint, "Solution": source})

    def __repr__(self) -> str:
        """The task, and the stub to copy."""
        again = f"labs.{self.name}.grade({self.stub.__name__}, seed=1)"
        return with_stub(self.task, effort(self.difficulty, self.minutes, again), self.stub)


_COPY = "Copy this function into a cell, fill it, and call labs.{0}.grade(my_{0})."

schedule = FunctionLab(
    "05",
    "Write the scheduler's plan of one step. " + _COPY.format("schedule"),
    "Blocks of a running request: those for all tokens after the step, less those it has already.",
    3, 30, stubs.my_schedule, checks.check_schedule,
)  # fmt: skip
cap = FunctionLab(
    "07",
    "Write the rule that cuts prompts into chunks. " + _COPY.format("cap"),
    "Two limits; the second one holds only while somebody else is there.",
    1, 10, stubs.my_cap, checks.check_cap,
)  # fmt: skip
online_softmax = FunctionLab(
    "10",
    "Write the heart of an attention kernel, in Triton. " + _COPY.format("online_softmax"),
    "What was summed under the old maximum is multiplied by exp(old - new); think of -inf - -inf.",
    4, 30, stubs.my_online_softmax, checks.check_online_softmax,
)  # fmt: skip
merge = FunctionLab(
    "11",
    "Write the merge of split-KV. " + _COPY.format("merge"),
    "A part weighs exp(lse); take the largest lse out before exp.",
    2, 15, stubs.my_merge, checks.check_merge,
)  # fmt: skip
top_p = FunctionLab(
    "12",
    "Write the filter top_p. " + _COPY.format("top_p"),
    "Sort; a token goes if the sum of those before it has reached top_p.",
    3, 20, stubs.my_top_p, checks.check_top_p,
)  # fmt: skip
propose = FunctionLab(
    "14",
    "Write a proposer for speculative decoding. " + _COPY.format("propose"),
    "The last line about a thing is newer than the first; and a single token says little.",
    3, 30, stubs.my_propose, check_propose,
)  # fmt: skip
mask = FunctionLab(
    "15",
    "Write the mask of structured outputs. " + _COPY.format("mask"),
    "Follow the bytes of each token from the state; one that is missing forbids the token.",
    2, 15, stubs.my_mask, checks.check_mask,
)  # fmt: skip
tool_stream = FunctionLab(
    "16",
    "Write a tool parser that is fed piece by piece. " + _COPY.format("tool_stream"),
    "Keep what is not used up in one string; look again at all of it when a piece has come.",
    4, 40, stubs.my_tool_stream, check_tool_stream,
)  # fmt: skip

join = FunctionLab(
    "21",
    "Write the slot that joins what a late reader has not read. " + _COPY.format("join"),
    "When is what waits out of date, and when is it a part of what the reader must get?",
    2, 10, stubs.my_join, serving_checks.check_join,
)  # fmt: skip
quantile = FunctionLab(
    "22",
    "Write the lookup of a quantile in a histogram. " + _COPY.format("quantile"),
    "Keep the bound and the count of the bucket before while you look for the rank.",
    2, 15, stubs.my_quantile, serving_checks.check_quantile,
)  # fmt: skip

FUNCTION_LABS = {
    lab.name: lab
    for lab in (
        schedule,
        cap,
        online_softmax,
        merge,
        top_p,
        propose,
        mask,
        tool_stream,
        join,
        quantile,
    )
}
