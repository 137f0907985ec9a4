"""Tables of points: a CSV file of a class, and Gradescope's results of one notebook."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from minivllm.course.classroom.grade import Grade
from minivllm.utils.validation import check

COLUMNS = (
    "file", "student", "name", "notebook", "points", "of", "weighted", "weighted of", "seeds",
    "status",
)  # fmt: skip


def write_csv(grades: list[Grade], path: Path) -> None:
    """Write a table: a row per notebook, a column per exercise; an empty one was not asked.

    "points" has one for each exercise, "weighted" as many as its difficulty, and one for the quiz.
    """
    exercises = list(dict.fromkeys(name for grade in grades for name in grade.expected))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*COLUMNS, *exercises], restval="")
        writer.writeheader()
        writer.writerows(_row(grade) for grade in grades)


def _row(grade: Grade) -> dict[str, str | int]:
    row = {
        "file": grade.file, "student": grade.student, "name": grade.name,
        "notebook": grade.number, "points": f"{grade.points:.4g}", "of": len(grade.expected),
        "weighted": f"{grade.weighted:.4g}", "weighted of": sum(grade.expected.values()),
        "seeds": " ".join(grade.seeds), "status": grade.status,
    }  # fmt: skip
    asked = {name: f"{entry['points']:g}" for name, entry in grade.entries.items()}
    return row | {name: asked[name] for name in grade.expected if name in asked}


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
