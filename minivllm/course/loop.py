"""The learner's loop: where am I, test, peek, next. ``minivllm lab`` and ``labs`` have these four.

In a repository that ``minivllm lab new`` made they speak of its five milestones; anywhere else of
the labs of all notebooks, each a file in ``my_labs``. Progress is noted in a file of the reader's
(``minivllm/course/grading/milestones.py``).
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from textwrap import fill
from typing import Any

from minivllm.course.asking.gradebook import Latest
from minivllm.course.asking.texts import read_toml, unwrap
from minivllm.course.assembly import MILESTONES, milestone
from minivllm.course.chapters import LABS
from minivllm.course.grading.class_lab import ClassLab
from minivllm.course.grading.function_lab import FunctionLab
from minivllm.course.grading.milestones import note_passed, note_peek, read_progress
from minivllm.course.grading.run import describe_error
from minivllm.course.grading.stubs import stub_source
from minivllm.lab.translation import translated
from minivllm.utils.validation import check

Lab = ClassLab | FunctionLab
MY_LABS = "my_labs"
WIDTH = 90
NOTEBOOKS = Path("notebooks")
TOGETHER = "mini_engine"


@dataclass(frozen=True)
class Task:
    """One thing to write: a lab, or a milestone of the capstone.

    Attributes:
        name: of the lab, or of the milestone's piece.
        lab: has the stub, the hint and the solution.
        file: in which it is written.
        what: is to be done, in a sentence.
        minutes: about how long it takes.
    """

    name: str
    lab: Lab
    file: Path
    what: str
    minutes: int

    @property
    def notebook(self) -> str:
        return notebook_of(self.lab)


def _milestone(piece: str, lab: str, minutes: int, what: str) -> Task:
    return Task(piece, LABS[lab], Path(f"{piece}.py"), what, minutes)


# A file each in the capstone's repository, in the order of the milestones.
CAPSTONE = {
    task.name: task
    for task in (
        _milestone("pool", "allocate_slots", 60, "Write points 1 and 3 of allocate_slots."),
        _milestone("table", "copy_on_write", 60, "Write the copies, and point 2 in pool.py."),
        _milestone("plan", "schedule", 60, "Write the scheduler's plan of one step."),
        _milestone("cache", "find_longest_cache_hit", 90, "Write the hit, and point 4 in pool.py."),
        _milestone("kernel", "online_softmax", 60, "Write one tile of the online softmax."),
    )
}  # fmt: skip


def notebook_of(lab: Lab) -> str:
    """The number of the notebook that asks for a lab."""
    return lab.stub.__module__.split(".")[-2].removeprefix("ch")


def in_repository() -> bool:
    """True in a directory that ``minivllm lab new`` filled."""
    return all(Path(f"{piece}.py").is_file() for piece in CAPSTONE)


def tasks() -> dict[str, Task]:
    """All tasks by name, in the order of the course."""
    if in_repository():
        return CAPSTONE
    return {
        name: Task(name, lab, Path(MY_LABS, f"{name}.py"), lab.task, lab.minutes)
        for name, lab in LABS.items()
    }


def status() -> None:
    """Print which labs or milestones are passed, how much help was looked at, and the next one.

    Raises:
        ValueError: for a progress file that is broken.
    """
    progress = read_progress()
    known = tasks()
    asked = [*known, TOGETHER]
    for name in asked:
        where = f"notebook {known[name].notebook}" if name in known else "all together"
        state = f"passed {progress.passed[name]}" if name in progress.passed else "-"
        peeks = progress.peeks.get(name, 0)
        helped = f"  looked at help {_times(peeks)}" if peeks else ""
        print(f"{name:22} {where:13} {state}{helped}".rstrip())
    print(f"{len(progress.passed.keys() & set(asked))} of {len(asked)}")
    task = _next_task()
    print(f"next: {task.name}" if task else "next: none, all are passed")


def next_lab() -> None:
    """Print what comes next: the lab or milestone, the notebook to read, and the stub to copy."""
    task = _next_task()
    if task is None:
        print(_all_done())
        return
    print(f"{_introduction(task)}\n\n{task.lab!r}")


def begin_next() -> None:
    """Print what comes next, and write the file to begin with if it is not there."""
    task = _next_task()
    if task is None:
        print(_all_done())
        return
    print(_introduction(task))
    if not task.file.exists():
        task.file.parent.mkdir(parents=True, exist_ok=True)
        task.file.write_text(begun(task.lab), encoding="utf-8")
    print(f"read   {_lecture(task.notebook)}")
    print(f"write  {task.file}")
    print(f"test   minivllm lab test {task.name}")
    print(f"stuck  minivllm lab peek {task.name}")


def peek(name: str = "") -> None:
    """Print one more help for a lab or a milestone, and count it: hint, idea, solution.

    Args:
        name: of a task; "" is the next one.

    Raises:
        ValueError: for a name that there is not, or a progress file that is broken.
    """
    task = _task(name)
    if task is None:
        print(_all_done())
        return
    helps = help_of(task.lab)
    looks = note_peek(task.name)
    title, text = list(helps.items())[min(looks, len(helps)) - 1]
    print(f"{task.name}, {translated(title)} (you have looked {_times(looks)}):\n{text.rstrip()}")
    if looks < len(helps):
        following = translated(list(helps)[looks])
        print(f"After it comes the {following}.")


def help_of(lab: Lab) -> dict[str, str]:
    """Help of a lab by title, in the order of looks: the hint, the idea, the solution."""
    solution = getattr(lab.solution, "fn", lab.solution)  # Triton keeps the function in fn
    idea = unwrap(read_toml("ideas.toml")[lab.name])
    texts = {"hint": fill(lab.hint, WIDTH), "idea": fill(idea, WIDTH)}
    return {**texts, "solution": inspect.getsource(solution)}


def grade_file(name: str = "", seed: int = 0) -> bool:
    """Grade the file of a task, the best words first, and note what is passed.

    Args:
        name: of a task, or "together". "" is every milestone up to the first that is not right in a
            repository, and the next lab elsewhere.
        seed: of a lab outside of a repository: another one is another lot of inputs.

    Returns: whether all that was graded is right.

    Raises:
        ValueError: for a name that there is not, or a progress file that is broken.
    """
    read_progress()  # a broken file is told before anything runs
    if in_repository():
        known = (*CAPSTONE, "together")
        check(name in ("", *known), "name", name, f"one of {', '.join(known)}")
        return _grade_milestones(name)
    task = _task(name)
    if task is None:
        print(_all_done())
        return True
    if not task.file.exists():
        print(f"not begun: {task.file} is not there; minivllm lab next writes it.")
        return False
    try:
        answer = _read(task.file, task.lab.stub.__name__)
    except (Exception, SystemExit) as error:  # there is no end to what a file may do
        print(f"not yet: {task.file}: {_describe(error)}.")
        return False
    task.lab.grade(answer, seed)
    return bool(Latest.entry["points"])


def _grade_milestones(name: str) -> bool:
    pieces: dict[str, Any] = {}
    for piece, task in CAPSTONE.items():
        try:
            pieces[piece] = _read(task.file, task.lab.stub.__name__)
        except (Exception, SystemExit) as error:
            if name in ("", piece, "together"):
                print(f"not yet: {piece}.py: {_describe(error)}.")
                return False
            pieces[piece] = task.lab.stub
    judged = {**dict(zip(CAPSTONE, MILESTONES, strict=True)), "together": "together"}
    num_begun = 0
    for piece, which in judged.items():
        if name not in ("", piece):
            continue
        verdict = milestone(which, **pieces)
        if verdict is None:
            print(f"{piece:9} not begun")
            continue
        print(f"{piece:9} {verdict}")
        if verdict.outcome != "passed":
            return False
        num_begun += 1
        note_passed(TOGETHER if piece == "together" else piece)
    return num_begun > 0


def _describe(error: Exception | SystemExit) -> str:
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {error.msg}"
    return describe_error(error)


def _read(file: Path, name: str) -> Any:
    """Import a file of the reader's, anew, and return what it calls so."""
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported: no GPU is needed
    folder = str(file.parent.resolve())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module_name = f"readers_{file.stem}"
    spec = spec_from_file_location(module_name, file)
    module = module_from_spec(spec)
    sys.modules[module_name] = module  # where inspect and Triton look for it
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        raise AttributeError(f"it has no {name}")
    return getattr(module, name)


def begun(lab: Lab) -> str:
    """The text of a file to begin a lab in: its imports and its stub."""
    lines = [f'"""Lab of notebook {notebook_of(lab)}: {lab.task}"""', ""]
    if isinstance(lab, ClassLab):
        lines += ["from __future__ import annotations", "", *_imports(lab.stub)]
    elif notebook_of(lab) == "10":
        lines += ["import triton", "import triton.language as tl"]
    lines += ["", ""]
    if isinstance(lab, FunctionLab) and notebook_of(lab) == "10":
        lines.append("@triton.jit")
    return "\n".join(lines) + "\n" + stub_source(lab.stub)


def _imports(stub: type) -> Iterator[str]:
    """Lines that import what a class's stub speaks of."""
    source = inspect.getsource(stub)
    for name, value in sorted(vars(sys.modules[stub.__module__]).items()):
        home = getattr(value, "__module__", "")
        if inspect.isclass(value) and name in source and home.split(".")[1:2] != ["course"]:
            yield f"from {home} import {name}"


def _next_task() -> Task | None:
    done = read_progress().passed
    return next((task for name, task in tasks().items() if name not in done), None)


def _task(name: str) -> Task | None:
    """A task by its name; the next one for ""."""
    known = tasks()
    check(name in ("", *known), "name", name, f"one of {', '.join(known)}")
    return known[name] if name else _next_task()


def _introduction(task: Task) -> str:
    return f"{task.name} (notebook {task.notebook}, about {task.minutes} minutes): {task.what}"


def _lecture(number: str) -> str:
    """The file of a notebook, if it is here; else its number."""
    found = sorted(NOTEBOOKS.glob(f"{number}_*.ipynb"))
    return str(found[0]) if found else f"notebook {number}"


def _all_done() -> str:
    if in_repository():
        return "All milestones are passed: minivllm lab test together"
    return "All labs are passed: build your own engine with minivllm lab new"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
