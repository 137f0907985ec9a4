"""The course as a whole: its map, its overview and its teacher's pages say what is there."""

import ast
import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

from minivllm.course.chapters import CHAPTERS, EXERCISES
from minivllm.exercises import quiz

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
PACKAGE = Path(__file__).parents[2] / "minivllm"
_spec = importlib.util.spec_from_file_location("course", NOTEBOOKS / "course.py")
course = sys.modules["course"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(course)
LECTURES = course.lectures()


@pytest.fixture(params=LECTURES, ids=lambda it: it.number)
def lecture(request):
    return request.param


def test_the_overview_is_current():
    written = (NOTEBOOKS / "README.md").read_text(encoding="utf-8")
    assert course.readme() == written, "run: python notebooks/course.py"


def test_links_of_the_pages_lead_somewhere():
    for page in [NOTEBOOKS / "README.md", *NOTEBOOKS.glob("*/*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_a_header_says_what_comes_first(lecture):
    assert len(lecture.objectives) == 3
    paragraph = re.search(r"\*\*\d+ minutes\.\*\*(.*)", lecture.header, re.DOTALL)[1]
    required = re.split(r";[^;]*\bhelp\b", paragraph)[0]
    named = re.findall(r"\b(\d\d[b]?|A\d)\b", required)
    assert sorted(set(named)) == sorted(lecture.needs)


def test_what_comes_first_does_come_first(lecture):
    order = [it.number for it in LECTURES]
    for needed in lecture.needs:
        assert order.index(needed) < order.index(lecture.number)


def test_a_track_leaves_nothing_out_that_its_notebooks_need():
    for track in ("systems", "kernels"):
        numbers = course.TRACKS[track]
        for number in numbers:
            later = set(CHAPTERS[number].needs) - set(numbers[: numbers.index(number)])
            allowed = {"07"} if track == "kernels" else set()  # the roofline looks back at chunks
            assert later <= allowed, (track, number)


# -- the chapters' folders -----------------------------------------------------------------------


def code_of(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")


def test_each_lecture_has_a_folder():
    assert sorted(CHAPTERS) == sorted(it.number for it in LECTURES)


def test_a_folder_names_its_labs_and_figures(lecture):
    """In ``__init__.py``; a figure that two notebooks draw belongs to ``lab/viz``."""
    chapter, folder = CHAPTERS[lecture.number], PACKAGE / f"course/ch{lecture.number}"
    homes = {lab.stub.__module__.rpartition(".")[2] for lab in chapter.labs}
    assert homes == {path.stem for path in folder.glob("lab_*.py")}
    texts = {it.number: code_of(it.path) for it in LECTURES}
    for figure in chapter.figures:
        assert figure.__module__.startswith(f"minivllm.course.ch{lecture.number}.figures.")
        drawn = re.compile(rf"\b{figure.__name__}\(")
        assert [n for n, text in texts.items() if drawn.search(text)] == [lecture.number]


def test_a_module_names_the_notebooks_that_list_it():
    """The head of each engine module ends with them: "(notebook 05)"."""
    listed, named = {}, {}
    for it in LECTURES:
        for file in re.findall(r'"# minivllm/([\w/]+\.py)\\n"', it.path.read_text("utf-8")):
            if not file.startswith(("lab/", "course/")) and it.number not in listed.get(file, []):
                listed.setdefault(file, []).append(it.number)
    for path in PACKAGE.rglob("*.py"):
        file = path.relative_to(PACKAGE).as_posix()
        head = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        note = re.search(r"\(notebooks? (\w+(?:, \w+)*)\)", head)
        if note and not file.startswith(("lab/", "course/")):
            named[file] = note[1].split(", ")
    assert len(listed) > 30
    assert named == listed


# -- the teacher's pages -------------------------------------------------------------------------


def page_of(lecture) -> str:
    return (NOTEBOOKS / "teach" / f"{lecture.number}.md").read_text(encoding="utf-8")


def test_a_teacher_has_three_misconceptions_and_the_cells_that_break_them(lecture):
    found = re.findall(
        r"^\d\. \*\"(.+?)\"\* Run the cell with `(.+?)`\. (.+)$", page_of(lecture), re.MULTILINE
    )
    assert len(found) == 3
    cells = json.loads(lecture.path.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    for _, anchor, explained in found:
        assert any(anchor in source for source in code), f"no cell of {lecture.number}: {anchor}"
        assert len(explained) > 30


def test_a_lecture_takes_45_minutes(lecture):
    minutes = re.findall(r"^\| (\d+) \|", page_of(lecture), re.MULTILINE)
    assert sum(map(int, minutes)) == 45


def test_the_exit_ticket_can_be_solved(lecture, capsys):
    ticket = re.search(r"## Exit ticket\n\n`ch(\w+)\.(\w+)\(seed=(\d+)\)`", page_of(lecture))
    assert ticket[1] == lecture.number
    chapter = EXERCISES[ticket[1]]
    exercise = getattr(chapter, ticket[2])(seed=int(ticket[3]))
    exercise.grade(exercise.solve())
    assert capsys.readouterr().out.startswith("right: ")


def test_the_page_asks_the_quiz_of_its_notebook(lecture):
    assert f'ask(quiz["{lecture.number}"])' in page_of(lecture)
    assert lecture.number in quiz
