"""Labs: write a piece of the engine, plug it in, and let it be graded as our own code is.

``labs.allocate_slots``, ``labs.copy_on_write`` and ``labs.find_longest_cache_hit`` say what is to
be written; ``labs.grade(MyClass)`` runs it.
"""

from __future__ import annotations

import inspect
import textwrap
from dataclasses import dataclass

from minivllm.kv.block_table import BlockTable
from minivllm.kv.manager import KVCacheManager
from minivllm.kv.prefix_cache import PrefixCache
from minivllm.lab.exercises.exercise import Folded
from minivllm.lab.exercises.labs import solutions, stubs
from minivllm.lab.exercises.labs.grading import Verdict, verdicts

__all__ = [
    "Lab",
    "Verdict",
    "allocate_slots",
    "copy_on_write",
    "find_longest_cache_hit",
    "grade",
    "plug_in",
]


@dataclass(frozen=True, repr=False)
class Lab:
    """One piece of the engine to be written by the reader.

    Args:
        task: what is to be done.
        hint: one sentence.
        stub: the class to begin with; its docstrings are the specification.
        solution: a class that passes.
    """

    task: str
    hint: str
    stub: type
    solution: type

    def show_help(self) -> Folded:
        """The hint and the solution's source, each folded."""
        return Folded({"Hint": self.hint, "Solution": inspect.getsource(self.solution)})

    def __repr__(self) -> str:
        """The task, and the stub to copy."""
        task = "\n".join(f"# {line}" for line in textwrap.wrap(self.task, 90))
        return f"{task}\n\n{inspect.getsource(self.stub)}"


allocate_slots = Lab(
    "Write allocate_slots, the method that every token's memory comes from. Copy this class into a "
    "cell, fill it, and call labs.grade(MyManager).",
    "Count everything that is needed before you take anything.",
    stubs.MyManager,
    solutions.AllocateSlots,
)
copy_on_write = Lab(
    "Write copy-on-write: when a block must be copied, and what happens then. Copy this class into "
    "a cell, fill it, and call labs.grade(MyTable).",
    "Of k sequences that share a block, k - 1 come here; the last one finds itself alone.",
    stubs.MyTable,
    solutions.CopyOnWrite,
)
find_longest_cache_hit = Lab(
    "Write the lookup of the prefix cache. Copy this class into a cell, fill it, and call "
    "labs.grade(MyCache).",
    "How many blocks may be found at most, so that one token is left?",
    stubs.MyCache,
    solutions.LongestHit,
)


def plug_in(cls: type) -> type[KVCacheManager]:
    """A manager with this class in its place: it is one, or a table or a cache for one.

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


def grade(cls: type) -> None:
    """Print a report: what passed, and the first thing that did not, explained."""
    try:
        manager_cls = plug_in(cls)
    except ValueError as error:
        print(f"not yet: {error}")
        return
    try:
        for verdict in verdicts(manager_cls):
            print(verdict)
    except NotImplementedError:
        print("not solved yet")
