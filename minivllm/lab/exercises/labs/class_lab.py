"""ClassLab: a lab whose answer is a class that takes a place in the engine."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

from minivllm.kv.block_table import BlockTable
from minivllm.kv.manager import KVCacheManager
from minivllm.kv.prefix_cache import PrefixCache
from minivllm.lab.exercises.exercise import Folded, effort
from minivllm.lab.exercises.labs.function_lab import with_stub


@dataclass(frozen=True, repr=False)
class ClassLab:
    """One class of the engine, a method of which is to be written by the reader.

    Args:
        task: what is to be done.
        hint: one sentence.
        difficulty: of 5.
        minutes: about how long it takes.
        stub: the class to begin with; its docstrings are the specification.
        solution: a class that passes.
    """

    task: str
    hint: str
    difficulty: int
    minutes: int
    stub: type
    solution: type

    def show_help(self) -> Folded:
        """The hint and the solution's source, each folded."""
        return Folded({"Hint": self.hint, "Solution": inspect.getsource(self.solution)})

    def __repr__(self) -> str:
        """The task, and the stub to copy."""
        again = f"labs.grade({self.stub.__name__}, seed=1)"
        return with_stub(self.task, effort(self.difficulty, self.minutes, again), self.stub)


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
