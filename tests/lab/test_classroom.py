"""Classroom: a reader's own repository, handouts, and the grading of notebooks."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from typer.testing import CliRunner

from minivllm.cli import app
from minivllm.exercises import labs
from minivllm.lab.classroom.repository import STUBS, new_repository

ROOT = Path(__file__).parents[2]


def minivllm(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def pytest_in(directory):
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-n0", "-p", "no:cacheprovider"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "1"}
    return subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True)


@pytest.mark.slow
def test_a_new_repository_skips_what_is_not_begun_and_fails_for_what_is_wrong(tmp_path):
    shown = minivllm("lab", "new", tmp_path / "mine", "--requirement", "minivllm==1").output
    assert str(tmp_path / "mine" / "pool.py") in shown
    assert (tmp_path / "mine" / "requirements.txt").read_text().startswith("minivllm==1\n")
    workflow = tmp_path / "mine" / ".github" / "workflows" / "labs.yml"
    assert "python scoreboard.py" in workflow.read_text()
    done = pytest_in(tmp_path / "mine")
    assert "6 skipped" in done.stdout, done.stdout + done.stderr
    plan = tmp_path / "mine" / "plan.py"
    plan.write_text(plan.read_text().replace("raise NotImplementedError", "return {}"))
    done = pytest_in(tmp_path / "mine")
    assert "1 failed, 5 skipped" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_with_the_solutions_all_recordings_are_equal(tmp_path):
    new_repository(tmp_path)
    for name, lab in STUBS.items():
        solution = getattr(lab.solution, "fn", lab.solution)
        theirs, mine = solution.__name__, lab.stub.__name__
        (tmp_path / name).write_text(f"from {solution.__module__} import {theirs} as {mine}\n")
    done = pytest_in(tmp_path)
    assert "6 passed" in done.stdout, done.stdout + done.stderr
    done = subprocess.run(
        [sys.executable, "scoreboard.py"], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MINIVLLM_CACHE_ROOT": str(tmp_path)},
    )  # fmt: skip
    assert "60 of 60 recordings" in done.stdout, done.stdout + done.stderr


def test_a_directory_with_something_in_it_is_refused(tmp_path):
    (tmp_path / "mine.py").write_text("my work")
    done = minivllm("lab", "new", tmp_path)
    assert done.exit_code != 0
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]
    with pytest.raises(ValueError, match="directory must be a new or an empty directory, got"):
        new_repository(tmp_path)


def test_each_milestone_of_the_page_is_a_lab_with_a_file():
    page = (ROOT / "notebooks" / "guide" / "build_your_own.md").read_text(encoding="utf-8")
    for name, lab in STUBS.items():
        lab_name = next(key for key, value in vars(labs).items() if value is lab)
        assert f"`labs.{lab_name}`" in page
        assert f"`{name}`" in page


# -- grading -------------------------------------------------------------------------------------


def notebook(path, *cells, number="00"):
    """A notebook of this lecture with these cells of code."""
    new = nbformat.v4
    made = new.new_notebook(cells=[new.new_markdown_cell(f"# {number} · A lecture")])
    made.cells += [new.new_code_cell(cell) for cell in cells]
    nbformat.write(made, path)
    return path


ASK = "from minivllm.exercises import ask, ch00, quiz\nseed = '20260123'"
RIGHT = "ask(ch00.blocks(seed=seed), ch00.blocks(seed=seed).solve())"


def graded(tmp_path, *paths, options=()):
    done = minivllm("grade", *paths, "--csv", tmp_path / "points.csv", *options)
    assert done.exit_code == 0, done.output
    with (tmp_path / "points.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_points_seeds_and_what_is_lacking(tmp_path):
    path = notebook(tmp_path / "one.ipynb", ASK, RIGHT, "ask(ch00.blocks(seed=1), 10**9)", RIGHT)
    (row,) = graded(tmp_path, path, options=("--gradescope", tmp_path / "results.json"))
    assert (row["notebook"], row["points"], row["ch00.blocks"]) == ("00", "1", "1")
    assert row["seeds"] == "20260123"  # of several answers to one exercise the last one counts
    assert row["status"].startswith("lacks ")
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["score"] == 1
    assert [test["score"] for test in results["tests"] if test["name"] == "ch00.blocks"] == [1]
    assert len(results["tests"]) == int(row["of"])


@pytest.mark.slow
def test_an_answer_that_cannot_be_read_was_asked_all_the_same(tmp_path):
    path = notebook(
        tmp_path / "three.ipynb",
        "from minivllm.exercises import ask, labs, quiz",
        "ask(labs.allocate_slots, dict)",
        "ask(quiz['03'], 'a b')",
        number="03",
    )
    (row,) = graded(tmp_path, path)
    assert (row["labs.allocate_slots"], row["quiz.03"]) == ("0", "0")
    assert "labs.allocate_slots" not in row["status"]
    assert "quiz.03" not in row["status"]


@pytest.mark.slow
def test_what_cannot_be_graded_has_a_row_that_says_so(tmp_path):
    crash = notebook(tmp_path / "crash.ipynb", ASK, "1 / 0", RIGHT)
    dead = notebook(tmp_path / "dead.ipynb", "import os; os._exit(1)")
    other = notebook(tmp_path / "other.ipynb", "1", number="99")
    empty = notebook(tmp_path / "empty.ipynb", "1")
    (tmp_path / "text.ipynb").write_text("no JSON")
    nbformat.write(nbformat.v4.new_notebook(), tmp_path / "none.ipynb")
    files = [
        crash,
        dead,
        other,
        empty,
        *(tmp_path / n for n in ("text.ipynb", "none.ipynb", "gone")),
    ]
    rows = {Path(row["file"]).stem: row for row in graded(tmp_path, *files)}
    assert rows["crash"]["status"] == "cell 2 raises ZeroDivisionError: division by zero"
    assert rows["crash"]["points"] == "1"  # what comes below is run, too
    assert "DeadKernelError" in rows["dead"]["status"]
    assert rows["other"]["status"] == "is no lecture: the header has '99'"
    assert rows["empty"]["status"].startswith("lacks ch00.blocks, ")
    for name in ("text", "none", "gone"):
        assert rows[name]["status"].startswith("is no notebook: "), name
    several = minivllm("grade", crash, empty, "--gradescope", tmp_path / "r.json")
    assert several.exit_code != 0


def test_a_handout_has_the_students_seeds_and_nbgraders_cells(tmp_path):
    cells = ("my_places = None\nask(ch03.translation(seed=0), my_places)", "1",
             "my_tables = None\nask(ch03.tables(seed=0), my_tables)")  # fmt: skip
    source = notebook(tmp_path / "03.ipynb", *cells)
    done = minivllm("lab", "handout", source, "--student", "20260123", "--to", tmp_path / "out")
    assert done.exit_code == 0, done.output
    copy = nbformat.read(tmp_path / "out" / "03.ipynb", as_version=4)
    nbformat.validate(copy)
    asked, test, _, *others = copy.cells[1:]
    assert asked.source == 'my_places = None\nask(ch03.translation(seed="20260123"), my_places)'
    assert asked.metadata.nbgrader.solution
    assert test.source == 'ch03.translation(seed="20260123").check(my_places)'
    assert (test.metadata.nbgrader.grade, test.metadata.nbgrader.locked) == (True, True)
    assert (test.metadata.nbgrader.points, test.metadata.nbgrader.schema_version) == (1, 3)
    assert [cell.metadata.nbgrader.grade_id for cell in others] == [
        "ch03-tables-answer", "ch03-tables",
    ]  # fmt: skip
    refused = minivllm("lab", "handout", source, "--student", 'a"b', "--to", tmp_path / "out")
    assert refused.exit_code != 0
    bare = notebook(tmp_path / "bare.ipynb", "1")
    refused = minivllm("lab", "handout", bare, "--student", "a", "--to", tmp_path / "out")
    assert "one that asks exercises" in refused.output
