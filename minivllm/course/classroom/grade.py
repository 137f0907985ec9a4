"""grade: run the notebooks that a class hands in, and make a table of their points.

A notebook is run from its first cell to its last in a kernel of its own; each ``ask`` in it writes
its points into a gradebook. A run executes what the notebook contains: grade in a container.
"""

from __future__ import annotations

import csv
import json
import os
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbclient import NotebookClient

from minivllm.course.asking import gradebook
from minivllm.course.asking.exercise import Seeded
from minivllm.course.asking.quiz import QUIZZES
from minivllm.course.chapters import CHAPTERS, EXERCISES
from minivllm.course.classroom.notebook import read_notebook
from minivllm.utils.validation import check

SECONDS_A_CELL = 300
HEADER = re.compile(r"^# (\w+) · ", re.MULTILINE)


@dataclass
class Grade:
    """Points of one notebook.

    Attributes:
        file: the notebook's path.
        number: of the lecture; empty if it is none.
        entries: of the gradebook, by exercise.
        expected: the exercises of this lecture.
        status: "ok", or what went wrong.
    """

    file: str
    number: str = ""
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    expected: list[str] = field(default_factory=list)
    status: str = "ok"

    @property
    def points(self) -> float:
        return sum(self.entries[name]["points"] for name in self.expected if name in self.entries)

    def row(self, columns: list[str]) -> list[Any]:
        """The row of this notebook in a table with these exercises."""
        seeds = sorted({str(entry["seed"]) for entry in self.entries.values()} - {""})
        points = [f"{self.entries[n]['points']:g}" if n in self.entries else "" for n in columns]
        head = [self.file, self.number, f"{self.points:.4g}", len(self.expected)]
        return [*head, " ".join(seeds), self.status, *points]


def exercises_of(number: str) -> list[str]:
    """Names of a lecture's exercises, its labs and its quiz."""
    kinds = [
        kind.name
        for kind in vars(EXERCISES[number]).values()
        if isinstance(kind, Seeded) and kind.name.startswith(f"ch{number}.")
    ]
    labs = [f"labs.{lab.name}" for lab in CHAPTERS[number].labs]
    return [*kinds, *labs, f"quiz.{number}"]


def grade(path: Path) -> Grade:
    """Run a notebook. What is wrong with it is told by ``status``; nothing is raised."""
    found = Grade(str(path))
    try:
        notebook = read_notebook(path)
    except ValueError as error:
        found.status = f"is no notebook: {error}"
        return found
    # a badge or a line that installs may stand above the title
    texts = (cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    header = next(filter(None, map(HEADER.search, texts)), None)
    found.number = header[1] if header else ""
    if found.number not in QUIZZES:
        found.status = f"is no lecture: the header has {found.number!r}"
        return found
    found.expected = exercises_of(found.number)
    with tempfile.TemporaryDirectory() as folder:
        book = Path(folder) / "gradebook.jsonl"
        settings = {gradebook.FILE: str(book), "MINIVLLM_CACHE_ROOT": folder}
        client = NotebookClient(
            notebook,
            timeout=SECONDS_A_CELL,
            kernel_name="python3",
            allow_errors=True,  # an exercise below a cell that fails may still be right
            resources={"metadata": {"path": str(path.parent)}},
        )
        try:
            client.execute(env={**os.environ, **settings})
        except Exception as error:  # a cell without an end, a kernel that dies
            found.status = f"{type(error).__name__}: {error}".split("\n")[0]
        found.entries = gradebook.read_points(book)
    if found.status == "ok":
        found.status = _what_is_wrong(notebook, found)
    return found


def _what_is_wrong(notebook: Any, found: Grade) -> str:
    lacking = [name for name in found.expected if name not in found.entries]
    blank = [name for name, entry in found.entries.items() if entry.get("is_blank_below")]
    told = [_first_error(notebook) or (f"lacks {', '.join(lacking)}" if lacking else "")]
    told.append(f"blank below an answer: {', '.join(blank)}" if blank else "")
    return "; ".join(filter(None, told)) or "ok"


def _first_error(notebook: Any) -> str:
    for number, cell in enumerate(notebook.cells):
        if cell.metadata.get("nbgrader", {}).get("grade"):
            continue  # it raises for each answer that is wrong, which costs the point alone
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                return f"cell {number} raises {output.ename}: {output.evalue}".split("\n")[0]
    return ""


def write_csv(grades: list[Grade], path: Path) -> None:
    """Write a table: a row per notebook, a column per exercise; an empty one was not asked."""
    columns = list(dict.fromkeys(name for grade in grades for name in grade.expected))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "notebook", "points", "of", "seeds", "status", *columns])
        writer.writerows(grade.row(columns) for grade in grades)


def check_tables(notebooks: list[Path], csv: Path | None, gradescope: Path | None) -> None:
    """Raise ``ValueError`` for tables that could not be written when all notebooks have run."""
    if gradescope:
        check(len(notebooks) == 1, "notebooks", len(notebooks), "one for --gradescope")
    tables = {"csv": csv, "gradescope": gradescope}
    for option, path in tables.items():
        if path is None:
            continue
        others = [*notebooks, *(o for name, o in tables.items() if name != option and o)]
        ok = all(path.resolve() != other.resolve() for other in others)
        check(ok, option, str(path), "a file of its own")
        is_new = not path.exists()
        try:
            path.open("ab").close()
        except OSError as error:
            raise ValueError(f"{option}: {path} cannot be written: {error.strerror}.") from error
        if is_new:
            path.unlink()


def write_gradescope(grades: list[Grade], path: Path) -> None:
    """Write Gradescope's results.json of the first submission."""
    tests = [
        {
            "name": name,
            "score": grades[0].entries.get(name, {}).get("points", 0),
            "max_score": 1,
            "output": grades[0].entries.get(name, {}).get("text", "not asked"),
        }
        for name in grades[0].expected
    ]
    results = {"score": grades[0].points, "output": grades[0].status, "tests": tests}
    path.write_text(json.dumps(results, indent=1), encoding="utf-8")
