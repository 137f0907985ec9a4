"""Labs: write a piece of the engine, plug it in, and let it be graded as our own code is.

``labs.allocate_slots``, ``labs.copy_on_write`` and ``labs.find_longest_cache_hit`` say what is to
be written; ``labs.grade(MyClass)`` runs it. ``labs.schedule``, ``labs.cap``, ``labs.merge``,
``labs.top_p``, ``labs.propose``, ``labs.mask``, ``labs.tool_stream``, ``labs.join``,
``labs.quantile`` and ``labs.online_softmax``
are functions; each grades its own, and so does ``labs.grade(my_cap)``, by its name.
``labs.mini_engine`` puts pieces together, and ``labs.progress()`` prints which labs are passed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from minivllm.kv.block_table import BlockTable
from minivllm.kv.manager import KVCacheManager
from minivllm.kv.prefix_cache import PrefixCache
from minivllm.lab.exercises.exercise import Folded, effort
from minivllm.lab.exercises.labs import solutions, stubs
from minivllm.lab.exercises.labs.assembly import mini_engine
from minivllm.lab.exercises.labs.functions import (
    FUNCTION_LABS,
    FunctionLab,
    cap,
    join,
    mask,
    merge,
    online_softmax,
    propose,
    quantile,
    schedule,
    tool_stream,
    top_p,
    with_stub,
)
from minivllm.lab.exercises.labs.grading import Verdict, verdicts
from minivllm.lab.exercises.labs.milestones import note_passed, progress
from minivllm.validation import check, is_int

__all__ = [
    "FunctionLab",
    "Lab",
    "Verdict",
    "allocate_slots",
    "cap",
    "copy_on_write",
    "find_longest_cache_hit",
    "grade",
    "join",
    "mask",
    "merge",
    "mini_engine",
    "online_softmax",
    "plug_in",
    "progress",
    "propose",
    "quantile",
    "schedule",
    "tool_stream",
    "top_p",
]


@dataclass(frozen=True, repr=False)
class Lab:
    """One piece of the engine to be written by the reader.

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


allocate_slots = Lab(
    "Write allocate_slots, the method that every token's memory comes from. Copy this class into a "
    "cell, fill it, and call labs.grade(MyManager).",
    "Count everything that is needed before you take anything.",
    4,
    120,
    stubs.MyManager,
    solutions.AllocateSlots,
)
copy_on_write = Lab(
    "Write copy-on-write: when a block must be copied, and what happens then. Copy this class into "
    "a cell, fill it, and call labs.grade(MyTable).",
    "Of k sequences that share a block, k - 1 come here; the last one finds itself alone.",
    3,
    15,
    stubs.MyTable,
    solutions.CopyOnWrite,
)
find_longest_cache_hit = Lab(
    "Write the lookup of the prefix cache. Copy this class into a cell, fill it, and call "
    "labs.grade(MyCache).",
    "How many blocks may be found at most, so that one token is left?",
    3,
    30,
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


def grade(answer: type | Callable, seed: int = 0) -> None:
    """Print a report: what passed, and the first thing that did not, explained.

    Args:
        answer: a class for one of the first three labs, or a function with a stub's name.
        seed: another one is another lot of inputs.

    Raises:
        ValueError: for what is no seed.
    """
    check(is_int(seed, 0), "seed", seed, "an integer of at least 0")
    name = getattr(answer, "__name__", "").removeprefix("my_")
    if name in FUNCTION_LABS:
        FUNCTION_LABS[name].grade(answer, seed)
        return
    try:
        manager_cls = plug_in(answer)
    except ValueError as error:
        print(f"not yet: {error}")
        return
    passed = True
    try:
        for verdict in verdicts(manager_cls, seed):
            print(verdict)
            passed = passed and verdict.outcome == "passed"
    except NotImplementedError:
        print("not solved yet")
        return
    if passed:
        for lab_name, lab in (
            ("allocate_slots", allocate_slots),
            ("copy_on_write", copy_on_write),
            ("find_longest_cache_hit", find_longest_cache_hit),
        ):
            if issubclass(answer, lab.stub.__bases__[0]) and answer is not lab.solution:
                note_passed(lab_name)
