"""ClassLab: a lab whose answer is a class that takes a place in the engine."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from minivllm.course.asking.answers import is_blank
from minivllm.course.asking.exercise import Folded, effort
from minivllm.course.asking.gradebook import is_grading, note_points
from minivllm.course.grading.function_lab import how_to_begin, with_stub
from minivllm.course.grading.milestones import note_passed
from minivllm.course.grading.verdicts import first_step, verdicts
from minivllm.kv.block_table import BlockTable
from minivllm.kv.manager import KVCacheManager
from minivllm.kv.prefix_cache import PrefixCache
from minivllm.utils.validation import check, is_int


@dataclass(frozen=True, repr=False)
class ClassLab:
    """One class of the engine, a method of which is to be written by the reader.

    Args:
        name: that of the method, and of the lab.
        task: what is to be done; how to begin is added to it.
        hint: one sentence.
        difficulty: of 5.
        minutes: about how long it takes.
        stub: the class to begin with; its docstrings are the specification.
        solution: a class that passes.
        begins_simply: whether scenarios without sharing and caching are graded first, alone.
    """

    name: str
    task: str
    hint: str
    difficulty: int
    minutes: int
    stub: type
    solution: type
    begins_simply: bool = False

    @property
    def base(self) -> type:
        """The class of the engine that an answer extends."""
        return self.stub.__bases__[0]

    def grade(self, answer: Any, seed: int = 0) -> None:
        """Print a report: what passed, and the first thing that did not, explained.

        Args:
            answer: a class; None is no answer yet.
            seed: another one draws other scenarios.

        Raises:
            ValueError: for what is no seed.
        """
        check(is_int(seed, 0), "seed", seed, "an integer of at least 0")
        report: list[tuple[str, bool]] = []
        try:
            for line in self._report(answer, seed):
                print(line[0])
                report.append(line)
        except NotImplementedError:
            print("not solved yet")
            report = [("not solved yet", False)]
        text, passed = report[-1]
        is_shipped = answer is self.solution
        passed = passed and not is_shipped
        note_points(f"labs.{self.name}", seed, passed, text, is_blank(answer) or is_shipped)
        if passed:
            note_passed(self.name)

    def _report(self, answer: Any, seed: int) -> Iterator[tuple[str, bool]]:
        """Yield each line of the report, and whether all up to it has passed."""
        if is_blank(answer):
            raise NotImplementedError
        if not (isinstance(answer, type) and issubclass(answer, self.base)):
            extends = self.base.__name__
            yield f"not yet: give a class that extends {extends}, got {answer!r}.", False
            return
        manager_cls = plug_in(answer)
        passed = True
        if self.begins_simply:
            verdict = first_step(manager_cls)
            yield str(verdict), verdict.outcome == "passed"
            if verdict.outcome == "FAILED":
                return
        for verdict in verdicts(manager_cls, seed):
            passed = passed and verdict.outcome == "passed"
            yield str(verdict), passed

    def show_pass(self) -> None:
        """Print what a pass looks like: the report of the solution. It counts for no one."""
        report = [("left out", True)] if is_grading() else self._report(self.solution, 0)
        for line, _ in report:
            print(line)

    def show_help(self) -> Folded:
        """The hint and the solution's source, each folded."""
        return Folded({"Hint": self.hint, "Solution": inspect.getsource(self.solution)})

    def __repr__(self) -> str:
        """The task, and the stub to copy."""
        mine = self.stub.__name__
        task = f"{self.task} {how_to_begin(f'labs.{self.name}', 'class', mine)}"
        again = f"labs.grade({mine}, seed=1)"
        return with_stub(task, effort(self.difficulty, self.minutes, again), self.stub)


def plug_in(cls: type) -> type[KVCacheManager]:
    """Make a manager with this class in its place: it is one, or a table or a cache for one.

    ``LLM(kv_cache_manager_cls=...)`` and ``dry_run(..., kv_cache_manager_cls=...)`` take it.

    Raises:
        ValueError: for anything else.
    """
    if isinstance(cls, type):
        if issubclass(cls, KVCacheManager):
            return cls
        for base, place in ((BlockTable, "block_table_cls"), (PrefixCache, "prefix_cache_cls")):
            if issubclass(cls, base):
                return type(f"ManagerWith{cls.__name__}", (KVCacheManager,), {place: cls})
    raise ValueError(
        f"give a class that extends KVCacheManager, BlockTable or PrefixCache, got {cls!r}."
    )
