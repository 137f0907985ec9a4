"""Labs: write a piece of the engine, plug it in, and let it be graded as our own code is.

``labs.allocate_slots``, ``labs.copy_on_write`` and ``labs.find_longest_cache_hit`` ask for classes,
all others for functions. ``ask(labs.cap, my_cap)`` says what is to be written and grades it;
``labs.grade(my_cap)`` only grades, and finds the lab by the name or by the class it extends.
``labs.mini_engine`` puts pieces together. The learner's loop has four verbs, as ``minivllm lab``:
``labs.status()``, ``labs.test(my_cap)``, ``labs.peek("cap")`` and ``labs.next()``.
Each lab is a file of its own: stub, solution and check.
"""

from __future__ import annotations

from collections.abc import Callable

from minivllm.course.assembly import assemble, milestone, mini_engine
from minivllm.course.chapters import CHAPTERS, LABS
from minivllm.course.grading.class_lab import ClassLab, plug_in
from minivllm.course.grading.function_lab import FunctionLab
from minivllm.course.grading.milestones import passed
from minivllm.course.grading.verdicts import Verdict, verdicts
from minivllm.course.loop import next_lab, peek, status

CLASS_LABS = {name: lab for name, lab in LABS.items() if isinstance(lab, ClassLab)}
FUNCTION_LABS = {name: lab for name, lab in LABS.items() if isinstance(lab, FunctionLab)}
globals().update(LABS)

__all__ = [
    "ClassLab", "FunctionLab", "Verdict", "assemble", "grade", "milestone", "mini_engine", "next",
    "peek", "plug_in", "progress", "status", "test", "verdicts", *LABS,
]  # fmt: skip

# What to build, and the notebook that each belongs to.
MILESTONES = {lab.name: n for n, chapter in CHAPTERS.items() for lab in chapter.labs}
MILESTONES["mini_engine"] = "all"


def grade(answer: type | Callable, seed: int = 0) -> None:
    """Print a report: what passed, and the first thing that did not, explained.

    Args:
        answer: a class for one of the first three labs, or a function with a stub's name.
        seed: another one is another lot of inputs.

    Raises:
        ValueError: for what is no seed.
    """
    name = getattr(answer, "__name__", "").removeprefix("my_")
    lab = FUNCTION_LABS.get(name)
    for each in CLASS_LABS.values():
        if isinstance(answer, type) and issubclass(answer, each.base):
            lab = each
    if lab is None:
        bases = ", ".join(each.base.__name__ for each in CLASS_LABS.values())
        print(
            f"not yet: give a class that extends one of {bases}, or a function with a stub's "
            f"name, got {answer!r}."
        )
        return
    lab.grade(answer, seed)


test = grade
next = next_lab


def progress() -> None:
    """Print each lab, its notebook, and whether it is passed."""
    days = passed()
    for name, notebook in MILESTONES.items():
        state = f"passed {days[name]}" if name in days else "-"
        print(f"{name:22} notebook {notebook:4} {state}")
    print(f"{len(MILESTONES.keys() & days)} of {len(MILESTONES)}")
