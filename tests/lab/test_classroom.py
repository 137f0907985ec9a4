"""Classroom: a reader's own repository, handouts, and the grading of notebooks."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from helpers import nightly
from typer.testing import CliRunner

from minivllm.cli import app
from minivllm.course.asking.answers import NotYet
from minivllm.course.asking.quiz import QUIZZES
from minivllm.course.classroom.grade import exercises_of, grade
from minivllm.course.classroom.repository import STUBS, new_repository
from minivllm.exercises import ch00, labs, points

ROOT = Path(__file__).parents[2]


def minivllm(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def pytest_in(directory):
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-n0", "-p", "no:cacheprovider"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "1"}
    return subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True)


def write_solution(directory, name):
    """Put the solution in the place of a stub."""
    lab = STUBS[name]
    solution = getattr(lab.solution, "fn", lab.solution)
    theirs, mine = solution.__name__, lab.stub.__name__
    (directory / name).write_text(f"from {solution.__module__} import {theirs} as {mine}\n")


@pytest.mark.slow
def test_a_new_repository_skips_what_is_not_begun_and_fails_for_what_is_wrong(tmp_path):
    shown = minivllm("lab", "new", tmp_path / "mine", "--requirement", "minivllm==1").output
    assert str(tmp_path / "mine" / "pool.py") in shown
    assert (tmp_path / "mine" / "requirements.txt").read_text().startswith("minivllm==1\n")
    workflow = tmp_path / "mine" / ".github" / "workflows" / "labs.yml"
    assert "python scoreboard.py" in workflow.read_text()
    write_solution(tmp_path / "mine", "pool.py")
    plan = tmp_path / "mine" / "plan.py"
    plan.write_text(plan.read_text().replace("raise NotImplementedError", "return {}"))
    done = pytest_in(tmp_path / "mine")
    assert "1 failed, 1 passed, 4 skipped" in done.stdout, done.stdout + done.stderr


@nightly
@pytest.mark.slow
def test_with_the_solutions_all_recordings_are_equal(tmp_path):
    new_repository(tmp_path)
    done = pytest_in(tmp_path)
    assert "6 skipped" in done.stdout, done.stdout + done.stderr
    for name in STUBS:
        write_solution(tmp_path, name)
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


JOBS = ("--jobs", 2)


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
    crashed, lacks = rows["crash"]["status"].split("; ")
    assert crashed == "cell 2 raises ZeroDivisionError: division by zero"
    assert lacks.startswith("lacks ch00.")
    assert rows["crash"]["points"] == "1"  # what comes below is run, too
    assert "DeadKernelError" in rows["dead"]["status"]
    assert rows["other"]["status"] == "is no lecture: the header has '99'"
    assert rows["empty"]["status"].startswith("lacks ch00.blocks, ")
    for name in ("text", "none", "gone"):
        assert rows[name]["status"].startswith("is no notebook: "), name
    several = minivllm("grade", crash, empty, "--gradescope", tmp_path / "r.json")
    assert several.exit_code != 0


@pytest.mark.slow
def test_all_that_is_wrong_is_listed_and_a_wrong_answer_is_not(tmp_path):
    """Cells that crash, exercises that are lacking, and those that another number has drawn."""
    own = "my_seed = '7'".replace("'", '"')
    imports = "from minivllm.exercises import ask, ch00, points, quiz"
    blocks = "ask(ch00.blocks(seed=my_seed), {})"
    right = blocks.format("ch00.blocks(seed=my_seed).solve()")
    quiz, point = "ask(quiz['00'], 'a b c a b')", "points(ch00.blocks(seed=my_seed), 10**9)"
    rest = [f"ask({name}(seed=my_seed), None)" for name in exercises_of("00") if "ch00" in name]
    files = {
        "wrong": [own, imports, *rest, blocks.format("10**9"), point, quiz],
        "crashed": [own, imports, "1 / 0", right, "unknown", quiz],
        "other": [own, imports, "my_seed = '8'", *rest, right, quiz],
        "plain": [own, imports, *rest, right.replace("my_seed", "0", 1), quiz],
        "mixed": [imports, "my_seed = '9'", *rest, right.replace("my_seed", "'7'", 1), quiz],
        "same": [own, imports, *rest, right, quiz],
    }
    paths = [notebook(tmp_path / f"{name}.ipynb", *cells) for name, cells in files.items()]
    rows = {Path(row["file"]).stem: row["status"] for row in graded(tmp_path, *paths, options=JOBS)}
    number = f"; has the number of {tmp_path / 'wrong.ipynb'}"
    assert rows["wrong"] == "ok"  # the cell that counts points has raised NotYet
    assert rows["crashed"].startswith(
        "cell 3 raises ZeroDivisionError: division by zero; "
        "cell 5 raises NameError: name 'unknown' is not defined; lacks ch00."
    )
    assert rows["other"].startswith("drawn by another number: ch00.")
    assert rows["other"].endswith(f"(8){number}")
    assert rows["plain"] == f"drawn by another number: ch00.blocks (0){number}"
    assert rows["mixed"] == "drawn by another number: ch00.blocks (7)"
    assert rows["same"] == number.removeprefix("; ")


@pytest.mark.slow
def test_a_blank_handout_is_ok_and_has_no_points(tmp_path):
    """The review's case: each locked cell raises, and so does what nbgrader leaves."""
    cells = ("from minivllm.exercises import ask, ch03, labs, quiz",
             *(f"my_a = None\nask({name}(seed=0), my_a)" for name in exercises_of("03")
               if name.startswith("ch03")),
             "MyManager = None\nask(labs.allocate_slots, MyManager)",
             'my_letters = None\nask(quiz["03"], my_letters)')  # fmt: skip
    source = notebook(tmp_path / "03.ipynb", *cells, number="03")
    done = minivllm("lab", "handout", source, "--student", "1", "--to", tmp_path / "a")
    assert done.exit_code == 0, done.output
    copy = nbformat.read(tmp_path / "a" / "03.ipynb", as_version=4)
    answer = next(cell for cell in copy.cells if "MyManager = None" in cell.source)
    answer.source = "# YOUR CODE HERE\nraise NotImplementedError()"
    nbformat.write(copy, tmp_path / "a" / "released.ipynb")
    blank, released = graded(
        tmp_path, *(tmp_path / "a" / n for n in ("03.ipynb", "released.ipynb"))
    )
    assert (blank["status"], blank["points"], blank["student"]) == ("ok", "0", "1")
    assert released["status"].startswith("lacks labs.allocate_slots; has the number of ")


@pytest.mark.slow
def test_several_at_a_time_are_graded_as_one_after_the_other(tmp_path, capfd):
    """In the order of the command, without a line of a kernel's own, each point by its worth."""
    cells = [ASK, RIGHT, "import os\nprint(os.environ['OMP_NUM_THREADS'])"]
    paths = [notebook(tmp_path / f"{n}.ipynb", *cells[: n % 3 + 1]) for n in range(3)]
    rows = graded(tmp_path, *paths, options=JOBS)
    assert [row["file"] for row in rows] == [str(path) for path in paths]
    assert [row["points"] for row in rows] == ["0", "1", "1"]
    difficulty = str(ch00.blocks.difficulty)
    assert [row["weighted"] for row in rows] == ["0", difficulty, difficulty]
    assert {row["weighted of"] for row in rows} == {str(sum(exercises_of("00").values()))}
    assert "encryption" not in capfd.readouterr().err
    done = minivllm("grade", *paths, "--jobs", 0)
    assert done.exit_code == 2
    assert "jobs must be at least 1, got 0." in done.stderr


CLASS = '\ufeffnumber,name\n007,"Li, Ann"\n8b,\n'


@pytest.mark.slow
def test_a_class_is_handed_out_and_graded_by_its_file(tmp_path):
    (tmp_path / "class.csv").write_text(CLASS, encoding="utf-8")
    source = notebook(tmp_path / "00.ipynb", "from minivllm.exercises import ask, ch00",
                      "my = ch00.blocks(seed=0).solve()\nask(ch00.blocks(seed=0), my)")  # fmt: skip
    options = ("--students", tmp_path / "class.csv")
    done = minivllm("lab", "handout", source, *options, "--to", tmp_path / "out")
    assert done.exit_code == 0, done.output
    paths = [tmp_path / "out" / number / "00.ipynb" for number in ("007", "8b")]
    assert done.output.split() == [str(path) for path in paths]
    assert 'my_seed = "007"' in paths[0].read_text().replace('\\"', '"')
    strange = notebook(tmp_path / "x.ipynb", 'my_seed = "9"', ASK)
    copied = tmp_path / "out" / "8b" / "00.ipynb"
    copied.write_bytes(paths[0].read_bytes())  # of another student
    ann, copy, other = graded(tmp_path, paths[0], copied, strange, options=options)
    assert (ann["student"], ann["name"], ann["points"]) == ("007", "Li, Ann", "0")
    assert "another number" not in ann["status"]
    assert copy["student"] == "8b"
    assert copy["status"].endswith("; drawn by another number: ch00.blocks (007)")
    assert other["status"].endswith("; the number '9' is none of the class")
    one = graded(tmp_path, paths[0], options=options)
    assert [(row["student"], row["status"]) for row in one][1:] == [("8b", "nothing handed in")]


def test_a_class_that_cannot_be_read_is_a_sentence(tmp_path):
    source = notebook(tmp_path / "03.ipynb", 'my_letters = None\nask(quiz["03"], my_letters)')
    table = tmp_path / "class.csv"
    twice = "students, line 3 must be another number than that of line 1, got '7'."
    for text, message in (
        ("7,Ann\n8,Bo\n7,Cy\n", twice),
        ("7;Ann\n8;Bo\n 7 ;Cy\n", twice),
        ("7,Ann\n\n8 b,Bo\n", "students, line 3 must be a number: letters and digits, got '8 b'."),
        ("7,Ann\n,Bo\n", "students, line 2 must be a number: letters and digits, got ''."),
        ("number,name\n", "students must be a file with a line for each: number, name, got"),
        ("", "students must be a file with a line for each"),
        (b"7,J\xf6rg\n", "is no text in UTF-8."),
        (None, "cannot be read: No such file or directory."),
    ):
        table.unlink(missing_ok=True)
        if text is not None:
            table.write_bytes(text if isinstance(text, bytes) else text.encode())
        for command in (("lab", "handout", source, "--to", tmp_path / "out"), ("grade", source)):
            done = minivllm(*command, "--students", table)
            assert done.exit_code == 2, done.output
            assert message in done.stderr, text
        assert not (tmp_path / "out").exists()
    for options in ((), ("--student", "7", "--students", table)):
        done = minivllm("lab", "handout", source, "--to", tmp_path / "out", *options)
        assert done.exit_code == 2
        assert "student must be a number, or none beside --students FILE" in done.stderr


@pytest.mark.slow
def test_a_blank_copy_takes_no_point_and_is_named(tmp_path):
    wrong, blank = "ask(ch00.blocks(seed=seed), 10**9)", "ask(ch00.blocks(seed=seed))"
    quiz = "ask(quiz['00'], 'a b c a b')"
    labs = "from minivllm.exercises import ask, labs"
    mine = "def mine(*args, **options): return labs.cap.solution(*args, **options)"
    files = {
        "below": [ASK, RIGHT, blank],
        "above": [ASK, blank, RIGHT],
        "between": [ASK, RIGHT, blank, wrong],
        "quiz": [ASK, quiz, "ask(quiz['00'])"],
    }
    paths = [notebook(tmp_path / f"{name}.ipynb", *cells) for name, cells in files.items()]
    # the answer that the notebook comes with is no answer either
    cells = (labs, mine, "ask(labs.cap, mine)", "ask(labs.cap, labs.cap.solution)")
    paths.append(notebook(tmp_path / "lab.ipynb", *cells, number="07"))
    rows = {Path(row["file"]).stem: row for row in graded(tmp_path, *paths)}
    points = {name: row["ch00.blocks"] for name, row in rows.items() if row["ch00.blocks"]}
    assert points == {"below": "1", "above": "1", "between": "0"}
    assert float(rows["quiz"]["quiz.00"]) > 0
    assert rows["lab"]["labs.cap"] == "1"
    for name, exercise in (("below", "ch00.blocks"), ("quiz", "quiz.00"), ("lab", "labs.cap")):
        assert rows[name]["status"].endswith(f"; blank below an answer: {exercise}"), name
    assert "blank" not in rows["above"]["status"] + rows["between"]["status"]


@pytest.mark.slow
def test_cells_above_the_title_are_no_error(tmp_path):
    path = notebook(tmp_path / "one.ipynb", ASK, RIGHT)
    made = nbformat.read(path, as_version=4)
    badge = "[![Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab)"
    made.cells.insert(0, nbformat.v4.new_code_cell("# 05 · no title\n1"))
    made.cells.insert(0, nbformat.v4.new_markdown_cell(badge))
    nbformat.write(made, path)
    made.cells[2].source = f"{badge}\n\n{made.cells[2].source}"
    nbformat.write(made, tmp_path / "two.ipynb")
    for row in graded(tmp_path, path, tmp_path / "two.ipynb"):
        assert (row["notebook"], row["points"]) == ("00", "1"), row


def file_of(cells, version=4, metadata=None):
    """A notebook's JSON with these cells, whatever they are."""
    found = {"nbformat": version, "nbformat_minor": 5, "metadata": metadata or {}, "cells": cells}
    return json.dumps(found)


CELL = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "id": "a"}
NO_NOTEBOOKS = {
    "text": "no JSON",
    "list": "[1, 2]",
    "number": "5",
    "null": "null",
    "empty": "",
    "other": '{"a": 1}',
    "no-cells": '{"nbformat": 4, "nbformat_minor": 5, "metadata": {}}',
    "none": file_of([]),
    "cells": file_of(5),
    "cell": file_of([5]),
    "half": file_of([{"cell_type": "code"}]),
    "no-source": file_of([CELL]),
    "source": file_of([{**CELL, "source": 5}]),
    "type": file_of([{**CELL, "source": "", "cell_type": ["code"]}]),
    "version": file_of([], version=99),
    "words": file_of([], version="four"),
    "deep": "[" * 100_000,
    "metadata": file_of([{**CELL, "source": 'ask(quiz["00"], a)'}], metadata=5),
    "outputs": file_of([{**CELL, "source": 'ask(quiz["00"], a)', "id": 5}]),
}
LENIENT = "metadata", "outputs"  # is graded: what it asks can be read


def test_what_is_no_notebook_is_a_sentence(tmp_path):
    for name, text in NO_NOTEBOOKS.items():
        (tmp_path / f"{name}.ipynb").write_text(text, encoding="utf-8")
    (tmp_path / "latin.ipynb").write_bytes(b'{"a": "\xe4"}')
    (tmp_path / "folder.ipynb").mkdir()
    right = notebook(tmp_path / "right.ipynb", 'my = None\nask(quiz["00"], my)')
    for name in (*NO_NOTEBOOKS, "latin", "folder", "gone"):
        path = tmp_path / f"{name}.ipynb"
        done = minivllm("lab", "handout", right, path, "--student", "a", "--to", tmp_path / "out")
        assert done.exit_code == 2, name
        assert f"{name}.ipynb is no notebook: " in done.stderr, name
        assert not (tmp_path / "out").exists()  # nor a copy of the one that is right
        if name not in LENIENT:
            assert grade(path).status.startswith("is no notebook: "), name


def test_tables_that_cannot_be_written_are_refused_before_anything_runs(tmp_path, monkeypatch):
    def run(*arguments):
        raise AssertionError("a notebook was run")

    monkeypatch.setattr("minivllm.course.classroom.grade.NotebookClient", run)
    one = notebook(tmp_path / "one.ipynb", "1")
    two = notebook(tmp_path / "two.ipynb", "1")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    table, gone = tmp_path / "t.csv", tmp_path / "gone" / "t.csv"
    for arguments, message in (
        ([one, two, "--gradescope", table], "notebooks must be one for --gradescope, got 2."),
        ([one, "--csv", gone], f"csv: {gone} cannot be written: No such file or directory."),
        ([one, "--csv", tmp_path], f"csv: {tmp_path} cannot be written: Is a directory."),
        ([one, "--gradescope", gone], f"gradescope: {gone} cannot be written: No such file"),
        ([one, "--csv", table, "--gradescope", table], "csv must be a file of its own, got"),
        ([one, two, "--csv", two], "csv must be a file of its own, got"),
        ([one, "--csv", table, "--gradescope", tmp_path], "gradescope: "),
    ):
        done = minivllm("grade", *arguments)
        assert done.exit_code == 2, done.output
        assert message in done.stderr
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


# -- handouts ------------------------------------------------------------------------------------


def test_a_handout_has_the_students_seeds_and_nbgraders_cells(tmp_path):
    places = "# Core: places\nmy_places = None  # [(_, _)]\n"
    cells = (f"{places}ask(ch03.translation(seed=0), my_places)", "1",
             "my_tables = None\nask(ch03.tables(seed=2), my_tables)",
             "Mine = None\nask(labs.allocate_slots, Mine)",
             'my_letters = None\nask(quiz["03"], my_letters)',
             "my_tables = None\nask(ch03.tables(seed=0), my_tables)")  # fmt: skip
    source = notebook(tmp_path / "03.ipynb", *cells)
    done = minivllm("lab", "handout", source, "--student", "20260123", "--to", tmp_path / "out")
    assert done.exit_code == 0, done.output
    copy = nbformat.read(tmp_path / "out" / "03.ipynb", as_version=4)
    nbformat.validate(copy)
    (seed,) = (cell for cell in copy.cells if "20260123" in cell.source)
    assert "nbgrader" not in seed.metadata  # so that it is the student's own when it comes back
    assert copy.cells[1] is seed
    assert [cell.source for cell in copy.cells[2:5]] == [
        "ch03.translation(seed=my_seed)",
        "# Core: places\n# my_places: [(_, _)]\n"
        "### BEGIN SOLUTION\nmy_places = None  # [(_, _)]\n### END SOLUTION\n"
        "ask(ch03.translation(seed=my_seed), my_places)",
        "from minivllm.exercises import points\npoints(ch03.translation(seed=my_seed), my_places)",
    ]
    marked = [cell.metadata.nbgrader for cell in copy.cells if "nbgrader" in cell.metadata]
    assert [found.grade_id for found in marked[1::2]] == [
        "ch03-translation", "ch03-tables", "labs-allocate_slots", "quiz-03", "ch03-tables-2",
    ]  # fmt: skip
    for answer, test in zip(marked[::2], marked[1::2], strict=True):
        assert answer.grade_id == f"{test.grade_id}-answer"
        assert (answer.solution, answer.locked, answer.grade) == (True, False, False)
        assert (test.grade, test.locked, test.points, test.schema_version) == (True, True, 1, 3)
    drawn = [cell.source for cell in copy.cells if cell.source.startswith("ch03.tables")]
    assert drawn == ['ch03.tables(seed=my_seed + "2")', "ch03.tables(seed=my_seed)"]


def test_a_handout_leaves_out_what_a_pass_looks_like(tmp_path, monkeypatch, capsys):
    source = notebook(tmp_path / "07.ipynb", "mine = None\nask(labs.cap, mine)", number="07")
    made = nbformat.read(source, as_version=4)
    report = nbformat.v4.new_code_cell("labs.cap.show_pass()", metadata={"tags": ["report"]})
    made.cells.append(report)
    nbformat.write(made, source)
    done = minivllm("lab", "handout", source, "--student", "a", "--to", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "show_pass" not in (tmp_path / "out" / "07.ipynb").read_text()
    labs.cap.show_pass()
    labs.allocate_slots.show_pass()
    shown = capsys.readouterr().out
    assert shown.count("passed   ") == 6
    monkeypatch.setenv("MINIVLLM_GRADEBOOK", str(tmp_path / "book"))
    labs.cap.show_pass()
    labs.allocate_slots.show_pass()
    assert capsys.readouterr().out == "left out\nleft out\n"
    assert not (tmp_path / "book").exists()


def test_a_locked_cell_gives_points_or_raises(capsys):
    exercise, quiz = ch00.blocks(seed="20260123"), QUIZZES["00"]
    assert points(exercise, exercise.solve()) == 1
    right = [question.answer for question in quiz.questions]
    assert points(quiz, right) == 1
    wrong = ["a" if letter != "a" else "b" for letter in right]
    assert points(quiz, right[:3] + wrong[3:]) == 0.6
    assert points(labs.cap, lambda *args, **options: labs.cap.solution(*args, **options)) == 1
    assert capsys.readouterr() == ("", "")
    for asked, answer in ((exercise, None), (exercise, 10**9), (quiz, wrong), (quiz, None),
                          (labs.cap, print), (labs.cap, labs.cap.solution)):  # fmt: skip
        with pytest.raises(NotYet, match=r"no point for [\w.]+; the cell above says why"):
            points(asked, answer)
    with pytest.raises(ValueError, match="exercise must be an exercise, a lab or a quiz, got None"):
        points(None, 1)


def test_what_cannot_be_handed_out_changes_no_file(tmp_path):
    ask = 'my_letters = None\nask(quiz["03"], my_letters)'
    source = notebook(tmp_path / "03.ipynb", ask)
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "copies").mkdir()
    (tmp_path / "copies" / "03.ipynb").hardlink_to(source)
    (tmp_path / "others").mkdir()
    other = notebook(tmp_path / "others" / "03.ipynb", ask)
    bare = notebook(tmp_path / "bare.ipynb", "1")
    made = minivllm("lab", "handout", source, "--student", "a", "--to", tmp_path / "made")
    assert made.exit_code == 0, made.output
    again = tmp_path / "made" / "03.ipynb"
    files = (source, other, bare, again)
    before = [path.read_bytes() for path in files]
    out = tmp_path / "out"
    for arguments, message in (
        ([source, "--to", tmp_path], "to must be a folder without the notebooks themselves"),
        ([source, "--to", tmp_path / "link"], "to must be a folder without the notebooks"),
        ([source, "--to", tmp_path / "copies"], "to must be a folder without the notebooks"),
        ([source, "--to", f"{tmp_path}/others/.."], "to must be a folder without the notebooks"),
        ([source, other, "--to", out], "notebooks must be files of different names, got"),
        ([source, bare, "--to", out], "notebook must be one that asks exercises drawn with"),
        ([again, "--to", out], "notebook must be one of the course, without nbgrader's metadata"),
        ([source, "--to", bare], "File exists"),
        ([source, "--student", 'a"b', "--to", out], "student must be letters and digits, got"),
    ):
        done = minivllm("lab", "handout", "--student", "a", *arguments)
        assert done.exit_code == 2, done.output
        assert message in done.stderr, arguments
        assert [path.read_bytes() for path in files] == before
        assert not out.exists()


def test_an_older_file_is_handed_out_in_todays_format(tmp_path):
    path = notebook(tmp_path / "03.ipynb", 'my_letters = None\nask(quiz["03"], my_letters)')
    old = json.loads(path.read_text(encoding="utf-8"))
    old["nbformat_minor"] = 4
    for cell in old["cells"]:
        del cell["id"]
    path.write_text("\ufeff" + json.dumps(old), encoding="utf-8")
    made = minivllm("lab", "handout", path, "--student", "a", "--to", tmp_path / "out")
    assert made.exit_code == 0, made.output
    nbformat.validate(nbformat.read(tmp_path / "out" / "03.ipynb", as_version=4))
