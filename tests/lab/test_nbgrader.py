"""Handouts in nbgrader itself: what it takes out and puts back, and its points beside ours.

It is no package of the tests: the nightly run installs it, elsewhere this file is skipped.
"""

import csv
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from typer.testing import CliRunner

from minivllm.cli import app
from minivllm.course.asking.quiz import QUIZZES
from minivllm.exercises import ch03

pytest.importorskip("nbgrader")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
STUB = "# YOUR CODE HERE\nraise NotImplementedError()"
CELLS = (
    "from minivllm.exercises import ask, ch03, labs, quiz",
    "# Core\nmy_places = None  # [(_, _, _), ...]\nask(ch03.translation(seed=0), my_places)",
    "my_block_size = None\nask(ch03.block_size(seed=0), my_block_size)",
    "MyManager = None  # a class\nask(labs.allocate_slots, MyManager)",
    '# Quiz\nmy_letters = None  # like "a b c a b"\nask(quiz["03"], my_letters)',
)


def nbgrader(course, *arguments):
    command = [sys.executable, "-m", "nbgrader", *arguments, f"--CourseDirectory.root={course}"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(command, cwd=course, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def handed_in(course, student, answers):
    """Hand out, let nbgrader release it, and put the student's answers in place of its stubs."""
    done = CliRunner().invoke(
        app, ["lab", "handout", str(course / "03.ipynb"), "--student", student,
              "--to", str(course / "source" / "week1")],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    nbgrader(course, "generate_assignment", "week1", "--force", "--create")
    released = nbformat.read(course / "release" / "week1" / "03.ipynb", as_version=4)
    for cell in released.cells:
        if STUB in cell.source:
            assert "ask(" in cell.source  # the question is still there
            assert "None" not in cell.source
            name = cell.metadata.nbgrader.grade_id.removesuffix("-answer")
            if answers.get(name) is not None:
                cell.source = cell.source.replace(STUB, answers.pop(name))
            else:
                answers.pop(name)
    assert not answers
    path = course / "submitted" / student / "week1" / "03.ipynb"
    path.parent.mkdir(parents=True)
    nbformat.write(released, path)
    return path


def test_nbgraders_points_are_those_of_grade(tmp_path, monkeypatch):
    # nbgrader starts its own tools by their names
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    course = tmp_path / "course"
    course.mkdir()
    new = nbformat.v4
    made = new.new_notebook(cells=[new.new_markdown_cell("# 03 · A lecture")])
    made.cells += [new.new_code_cell(cell) for cell in CELLS]
    made.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(made, course / "03.ipynb")
    letters = [question.answer for question in QUIZZES["03"].questions]
    wrong = ["b" if letter == "a" else "a" for letter in letters]
    noisy = "import sys\nprint('a line on the error stream', file=sys.stderr)\n"
    files = {
        "ada1": {
            "ch03-translation": f"my_places = {ch03.translation(seed='ada1').solve()!r}",
            "ch03-block_size": f"{noisy}my_block_size = {ch03.block_size(seed='ada1').solve()!r}",
            "labs-allocate_slots": "class MyManager(labs.allocate_slots.solution): pass",
            "quiz-03": f"my_letters = {letters!r}",
        },
        "bob2": {
            "ch03-translation": f"my_places = {ch03.translation(seed='bob2').solve()!r}",
            "ch03-block_size": None,  # the stub, which raises
            "labs-allocate_slots": "MyManager = labs.allocate_slots.solution",
            "quiz-03": f"my_letters = {letters[:3] + wrong[3:]!r}",
        },
    }
    assert files["ada1"]["ch03-translation"] != files["bob2"]["ch03-translation"]
    paths = [handed_in(course, student, answers) for student, answers in files.items()]
    nbgrader(course, "autograde", "week1", "--create", "--ExecutePreprocessor.timeout=300")
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as book:
        theirs = {
            student: {
                grade.name: grade.score
                for grade in book.find_submission_notebook("03", "week1", student).grades
            }
            for student in files
        }
    assert theirs["ada1"] == dict.fromkeys(theirs["bob2"], 1)
    assert theirs["bob2"] == {
        "ch03-translation": 1, "ch03-block_size": 0, "labs-allocate_slots": 0, "quiz-03": 0.6,
    }  # fmt: skip
    table = tmp_path / "points.csv"
    done = CliRunner().invoke(app, ["grade", *map(str, paths), "--csv", str(table)])
    assert done.exit_code == 0, done.output
    for row in csv.DictReader(table.open(encoding="utf-8", newline="")):
        student = Path(row["file"]).parts[-3]
        ours = {name: float(row[name.replace("-", ".", 1)] or 0) for name in theirs[student]}
        assert ours == theirs[student]
        assert row["seeds"] == f"0 {student}"
