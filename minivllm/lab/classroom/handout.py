"""Handout: a notebook for one student, with exercises of its own, ready for nbgrader."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat

from minivllm.utils.validation import check

ASKED = re.compile(r"\bask\((ch\w+\.\w+)\(seed=0\), (\w+)\)")


def write_handout(path: Path, student: str, directory: Path) -> Path:
    """Write a copy of a notebook for a student. Returns where.

    Each exercise is drawn by the student's number, and is followed by a locked cell that raises
    unless the answer is right, as nbgrader wants it. Outputs are left out.

    Args:
        path: a notebook of the course.
        student: letters and digits; the seed of its exercises.
        directory: made if it is missing; the copy keeps the notebook's name.

    Raises:
        ValueError: for a notebook without exercises, or a number with other characters.
    """
    ok = student.isalnum() and student.isascii()
    check(ok, "student", student, "letters and digits")
    notebook, cells = nbformat.read(path, as_version=4), []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        cells.append(cell)
        if not (asked := ASKED.search(cell.source)) or cell.cell_type != "code":
            continue
        name, answer = asked.groups()
        exercise = f'{name}(seed="{student}")'
        cell.source = ASKED.sub(f"ask({exercise}, {answer})", cell.source)
        grade_id = name.replace(".", "-")
        cell.metadata["nbgrader"] = _nbgrader(f"{grade_id}-answer", solution=True)
        test = nbformat.v4.new_code_cell(f"{exercise}.check({answer})")
        test.metadata["nbgrader"] = _nbgrader(grade_id, grade=True, locked=True, points=1)
        cells.append(test)
    found = len(cells) > len(notebook.cells)
    check(found, "notebook", str(path), "one that asks exercises drawn with seed=0")
    notebook.cells = cells
    directory.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, target := directory / path.name)
    return target


def _nbgrader(grade_id: str, **keys: bool | int) -> dict:
    """Metadata of a cell, as version 3 of nbgrader's format has it."""
    usual = {"grade": False, "solution": False, "locked": False, "task": False}
    return {"schema_version": 3, "grade_id": grade_id, "cell_type": "code", **usual, **keys}
