"""Handout: notebooks for students, with exercises of their own, ready for nbgrader.

Of an exercise nbgrader takes out the answer alone, and puts back the cell that counts points. That
cell is the same for all students: their seed has a cell of its own, which is left alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat

from minivllm.course.classroom.notebook import read_notebook
from minivllm.utils.validation import check

ASKED = re.compile(
    r'^ask\((?P<exercise>ch\w+\.\w+\(seed=(?P<seed>\d+)\)|labs\.\w+|quiz\["\w+"\]), '
    r"(?P<answer>\w+)\)",
    re.MULTILINE,
)
REPORT = "report"  # the tag of a cell that shows what a pass looks like
BEGIN = "### BEGIN SOLUTION"
END = "### END SOLUTION"


def write_handouts(paths: Sequence[Path], folders: Mapping[str, Path]) -> list[Path]:
    """Write copies of notebooks for each student of a class. Returns where.

    Each exercise is drawn by the student's number. Its question has a cell; its answer is marked as
    nbgrader's solution; and a locked cell follows that gives the points. Outputs are left out.

    Args:
        paths: notebooks of the course.
        folders: by student the folder of the copies, made if it is missing; these keep the
            notebooks' names. A student is letters and digits: the seed of the exercises.

    Raises:
        ValueError: for what is no notebook, one without exercises, a number with other characters,
            or a folder in which a copy would take the place of a notebook, or of another copy.
            Nothing is written then.
    """
    names = [path.name for path in paths]
    check(len(set(names)) == len(names), "notebooks", names, "files of different names")
    copies = {}
    for student, folder in folders.items():
        ok = student.isalnum() and student.isascii()
        check(ok, "student", student, "letters and digits")
        copies |= {folder / path.name: make_handout(path, student) for path in paths}
        taken = [folder / name for name in names if _is_one_of(folder / name, paths)]
        allowed = "a folder without the notebooks themselves, whose names the copies keep"
        check(not taken, "to", str(folder), allowed)
    for target, copy in copies.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(nbformat.writes(copy), encoding="utf-8")
    return list(copies)


def _is_one_of(target: Path, paths: Sequence[Path]) -> bool:
    return target.exists() and any(target.samefile(path) for path in paths)


def make_handout(path: Path, student: str) -> Any:
    """A student's copy of a notebook, as an ``nbformat.NotebookNode``.

    Raises:
        ValueError: for what is no notebook, has no exercises, or is a handout already.
    """
    try:
        notebook = read_notebook(path)
    except ValueError as error:
        raise ValueError(f"{path} is no notebook: {error}") from error
    is_new = not any("nbgrader" in cell.metadata for cell in notebook.cells)
    check(is_new, "notebook", str(path), "one of the course, without nbgrader's metadata")
    cells: list[Any] = []
    times: Counter[str] = Counter()  # that an exercise has been asked
    for cell in notebook.cells:
        if REPORT in cell.metadata.get("tags", []):
            continue
        asked = None
        if cell.cell_type == "code":
            cell.outputs = []
            cell.execution_count = None
            asked = ASKED.search(cell.source)
        if asked is None:
            cells.append(cell)
            continue
        if not times:
            seed = f'my_seed = "{student}"  # of your own exercises: leave it as it is'
            cells.append(nbformat.v4.new_code_cell(seed))
        name = re.sub(r"\W+", "-", asked["exercise"].partition("(")[0]).strip("-")
        times[name] += 1
        grade_id = name if times[name] == 1 else f"{name}-{times[name]}"
        cells += _exercise(cell, asked, grade_id)
    check(bool(times), "notebook", str(path), "one that asks exercises drawn with seed=0")
    notebook.cells = cells
    try:
        nbformat.validate(notebook)
    except nbformat.ValidationError as error:
        raise ValueError(f"{path} is no notebook: {error}".split("\n")[0]) from error
    return notebook


def _exercise(cell: Any, asked: re.Match, grade_id: str) -> list[Any]:
    """Cells of one exercise: the question, the answer, and what counts the points."""
    exercise = _seeded(asked)
    answer = asked["answer"]
    cell.source = _marked(cell.source, asked)
    cell.metadata["nbgrader"] = _nbgrader(f"{grade_id}-answer", solution=True)
    points = "from minivllm.exercises import points\n" + f"points({exercise}, {answer})"
    test = nbformat.v4.new_code_cell(points)
    test.metadata["nbgrader"] = _nbgrader(grade_id, grade=True, locked=True, points=1)
    return [nbformat.v4.new_code_cell(exercise), cell, test]


def _seeded(asked: re.Match) -> str:
    """The exercise, drawn by the student's number; one with a seed above 0 is another one."""
    if asked["seed"] is None:
        return asked["exercise"]
    another = "" if int(asked["seed"]) == 0 else f' + "{asked["seed"]}"'
    return asked["exercise"].partition("(")[0] + f"(seed=my_seed{another})"


def _marked(source: str, asked: re.Match) -> str:
    """The source, with the lines of the answer marked; what it should look like stays."""
    answer = asked["answer"]
    before = source[: asked.start()].splitlines()
    num_comments = next((i for i, line in enumerate(before) if line[:1] != "#"), len(before))
    head = before[:num_comments]
    lines = before[num_comments:]
    if lines and (form := re.match(rf"{answer} = .*?  # (.+)", lines[0])):
        head.append(f"# {answer}: {form[1]}")
    ask = f"ask({_seeded(asked)}, {answer})"
    return "\n".join([*head, BEGIN, *lines, END, ask]) + source[asked.end() :]


def _nbgrader(grade_id: str, **keys: bool | int) -> dict:
    """Metadata of a cell, as version 3 of nbgrader's format has it."""
    usual = {"grade": False, "solution": False, "locked": False, "task": False}
    return {"schema_version": 3, "grade_id": grade_id, "cell_type": "code", **usual, **keys}
