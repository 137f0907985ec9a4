"""grade: run the notebooks that a class hands in, and count their points.

A notebook is run from its first cell to its last in a kernel of its own; each ``ask`` in it writes
its points into a gradebook. A run executes what the notebook contains: grade in a container.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from nbclient import NotebookClient

from minivllm.course.asking import gradebook
from minivllm.course.asking.exercise import Seeded
from minivllm.course.asking.quiz import QUIZZES
from minivllm.course.chapters import CHAPTERS, EXERCISES
from minivllm.course.classroom.notebook import read_notebook

SECONDS_A_CELL = 300
HEADER = re.compile(r"^# (\w+) · ", re.MULTILINE)
OWN_SEED = re.compile(r'^my_seed = "(\w+)"', re.MULTILINE)
SUFFIX = re.compile(r'\bmy_seed \+ "(\w+)"')
NO_CRASHES = ("NotYet",)  # what a locked cell raises for an answer that is wrong


@dataclass
class Grade:
    """Points of one notebook.

    Attributes:
        file: the notebook's path.
        student: the number of who hands it in: of a folder of the path, if a class is known, else
            that of the notebook's own ``my_seed``.
        name: of this student, in the class.
        number: of the lecture; empty if it is none.
        entries: of the gradebook, by exercise.
        expected: by name the exercises of this lecture, with the points that each is worth where
            its difficulty counts.
        status: "ok", or all that went wrong.
    """

    file: str
    student: str = ""
    name: str = ""
    number: str = ""
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    expected: dict[str, int] = field(default_factory=dict)
    status: str = "ok"

    @property
    def points(self) -> float:
        """One for each exercise."""
        return sum(self.entries[name]["points"] for name in self.expected if name in self.entries)

    @property
    def weighted(self) -> float:
        """Points, for each exercise as many as its difficulty."""
        asked = {name: worth for name, worth in self.expected.items() if name in self.entries}
        return sum(worth * self.entries[name]["points"] for name, worth in asked.items())

    @property
    def seeds(self) -> list[str]:
        """The seeds of all that was asked."""
        return sorted({str(entry["seed"]) for entry in self.entries.values()} - {""})

    def add(self, problem: str) -> None:
        """Add something that went wrong to the status."""
        self.status = problem if self.status == "ok" else f"{self.status}; {problem}"


def exercises_of(number: str) -> dict[str, int]:
    """Names of a lecture's exercises, its labs and its quiz, with the difficulty; 1 for a quiz."""
    kinds = {
        kind.name: kind.difficulty
        for kind in vars(EXERCISES[number]).values()
        if isinstance(kind, Seeded) and kind.name.startswith(f"ch{number}.")
    }
    labs = {f"labs.{lab.name}": lab.difficulty for lab in CHAPTERS[number].labs}
    return {**kinds, **labs, f"quiz.{number}": 1}


def grade_all(
    paths: Sequence[Path], students: Mapping[str, str] | None = None, jobs: int = 1
) -> Iterator[Grade]:
    """Run notebooks, some at a time. Yields their grades in the order of the paths.

    Args:
        paths: the notebooks.
        students: names by number, if the class is known.
        jobs: how many run at a time.
    """
    first: dict[tuple[str, str], str] = {}
    with ThreadPoolExecutor(jobs) as pool:
        for found in pool.map(partial(grade, students=students, jobs=jobs), paths):
            if found.student and found.number:
                other = first.setdefault((found.student, found.number), found.file)
                if other != found.file:
                    found.add(f"has the number of {other}")
            yield found


def grade(path: Path, students: Mapping[str, str] | None = None, jobs: int = 1) -> Grade:
    """Run a notebook. All that is wrong with it is told by ``status``; nothing is raised."""
    found = Grade(str(path))
    try:
        notebook = read_notebook(path)
    except ValueError as error:
        found.add(f"is no notebook: {error}")
        return found
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    own = OWN_SEED.search(code)
    folders = [part for part in path.resolve().parts if part in (students or {})]
    found.student = folders[-1] if folders else own[1] if own else ""
    found.name = (students or {}).get(found.student, "")
    # a badge or a line that installs may stand above the title
    texts = (cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    header = next(filter(None, map(HEADER.search, texts)), None)
    found.number = header[1] if header else ""
    if found.number not in QUIZZES:
        found.add(f"is no lecture: the header has {found.number!r}")
        return found
    found.expected = exercises_of(found.number)
    if problem := _run(notebook, path.parent, found, jobs):
        found.add(problem)
    for problem in (*_crashes(notebook), *_gaps(found), *_strangers(found, code, students)):
        found.add(problem)
    return found


def _run(notebook: Any, folder: Path, found: Grade, jobs: int) -> str:
    """Run a notebook and read its gradebook. Returns what ended it before its last cell."""
    problem = ""
    with tempfile.TemporaryDirectory() as home:
        book = Path(home) / "gradebook.jsonl"
        settings = {gradebook.FILE: str(book), "MINIVLLM_CACHE_ROOT": home}
        if jobs > 1:  # they share the cores
            settings["OMP_NUM_THREADS"] = "1"
        client = NotebookClient(
            notebook,
            timeout=SECONDS_A_CELL,
            kernel_name="python3",
            allow_errors=True,  # an exercise below a cell that fails may still be right
            resources={"metadata": {"path": str(folder)}},
            extra_arguments=["--log-level=ERROR"],  # no warning about this machine's sockets
        )
        try:
            client.execute(env={**os.environ, **settings})
        except Exception as error:  # a cell without an end, a kernel that dies
            problem = f"{type(error).__name__}: {error}".split("\n")[0]
        found.entries = gradebook.read_points(book)
    return problem


def _crashes(notebook: Any) -> Iterator[str]:
    """Cells that raise, but for those that only count points or hold no answer yet."""
    for number, cell in enumerate(notebook.cells):
        marks = cell.metadata.get("nbgrader", {})
        if marks.get("grade"):
            continue  # it raises for each answer that is wrong, which costs the point alone
        for output in cell.get("outputs", []):
            if output.output_type != "error" or output.ename in NO_CRASHES:
                continue
            if marks.get("solution") and output.ename == "NotImplementedError":
                continue  # nbgrader's own line, in place of an answer
            yield f"cell {number} raises {output.ename}: {output.evalue}".split("\n")[0]


def _gaps(found: Grade) -> Iterator[str]:
    """Exercises that were not asked, and answers with a blank one below."""
    if lacking := [name for name in found.expected if name not in found.entries]:
        yield f"lacks {', '.join(lacking)}"
    if blank := [name for name, entry in found.entries.items() if entry.get("is_blank_below")]:
        yield f"blank below an answer: {', '.join(blank)}"


def _strangers(found: Grade, code: str, students: Mapping[str, str] | None) -> Iterator[str]:
    """Exercises that another number has drawn, and a number that the class does not have."""
    if students is not None and found.student not in students:
        yield f"the number {found.student!r} is none of the class"
    drawn = {
        name: str(entry["seed"]) for name, entry in found.entries.items() if name.startswith("ch")
    }
    texts = [seed for name, seed in drawn.items() if isinstance(found.entries[name]["seed"], str)]
    if not (found.student or texts):
        return  # the course's own numbers, as in a notebook that was not handed out
    student = found.student or Counter(texts).most_common(1)[0][0]
    mine = {student, *(student + suffix for suffix in SUFFIX.findall(code))}
    if others := [f"{name} ({seed})" for name, seed in drawn.items() if seed not in mine]:
        yield f"drawn by another number: {', '.join(others)}"
