"""Every exercise of every notebook says its difficulty, its minutes and its next seed, in one form.

What a notebook shows is compared with the kinds of exercises and the labs that there are.
"""

import re
from pathlib import Path

import nbformat
import pytest
from exercise_kinds import KINDS

from minivllm.course.asking.exercise import effort
from minivllm.course.labs import MILESTONES
from minivllm.exercises import labs

ALL = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
NOTEBOOKS = [path for path in ALL if path.stem != "90_minutes"]  # which asks again what others do
LABS = {name: getattr(labs, name) for name in MILESTONES if name != "mini_engine"}
KIND = re.compile(r"\b(ch\w+\.\w+)\(seed=(\d+)\)")
LAB = re.compile(rf"\blabs\.({'|'.join(LABS)})\b")
BORROWED = {"chA1.at_most": "A2"}  # asked again there, with another seed


def is_report(cell) -> bool:
    """A cell that shows, folded, what a pass looks like."""
    return "report" in cell.metadata.get("tags", [])


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem.partition("_")[0])
def section(request):
    """The number of a notebook, and the cells under its heading "Exercises"."""
    cells, inside = [], False
    for cell in nbformat.read(request.param, as_version=4).cells:
        headings = re.findall(r"^## (.*)$", cell.source, re.MULTILINE)
        if cell.cell_type == "markdown" and headings:
            inside = headings[-1] == "Exercises"
        if inside and not is_report(cell):
            cells.append(cell)
    return request.param.stem.partition("_")[0], cells


def shown(cell) -> str:
    """Text that the cell printed or displayed, in one line."""
    texts = []
    for output in cell.outputs:
        texts.append(output["text"] if "text" in output else output["data"]["text/plain"])
    return " ".join(" ".join(texts).replace("\n# ", " ").split())


def test_each_exercise_is_shown_with_its_effort_and_the_next_seed(section):
    number, cells = section
    for cell in cells:
        if cell.cell_type != "code" or ("quiz" in cell.source and not LAB.search(cell.source)):
            continue
        kinds, its_labs = KIND.findall(cell.source), set(LAB.findall(cell.source))
        assert len(kinds) + len(its_labs) == 1, f"{number}: one exercise in {cell.source!r}"
        for name, seed in kinds:
            kind, again = KINDS[name], f"{name}(seed={int(seed) + 1})"
            assert effort(kind.difficulty, kind.minutes, again) in shown(cell)
            assert "not solved yet" in shown(cell)
        for name in its_labs:
            lab = LABS[name]
            again = re.search(r"Then without help: (.*?seed=1\))\.", shown(cell))[1]
            assert again.startswith("labs.")
            assert effort(lab.difficulty, lab.minutes, again) in shown(cell)


def test_exercises_labs_and_the_quiz_are_asked_in_one_form(section):
    number, cells = section
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    old = re.compile(r"\.grade\(|\.show_help\(|\bquiz\.\w|^display\(|^print\(", re.MULTILINE)
    in_one_form = all("ask(" in source and not old.search(source) for source in code)
    its_quiz = re.search(rf"""^ask\(quiz\[["']{number}["']\]""", "\n".join(code), re.MULTILINE)
    assert in_one_form
    assert its_quiz


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem.partition("_")[0])
def test_no_lab_arrives_solved(path):
    """Its cell has None for an answer; what a pass looks like is folded, in a cell of its own."""
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type != "code":
            continue
        if asked := re.search(r"^ask\(labs\.\w+, (.*)\)", cell.source, re.MULTILINE):
            assert re.search(rf"^{asked[1]} = None\b", cell.source, re.MULTILINE), cell.source
            assert "not solved yet" in shown(cell)
        assert ".solution" not in cell.source
        assert is_report(cell) == (".show_pass()" in cell.source)
        if is_report(cell):
            assert cell.metadata.jupyter.outputs_hidden
            assert shown(cell).startswith("passed")


def test_nothing_is_asked_that_is_no_exercise(section):
    """One heading for each exercise, and no second statement of effort or seed."""
    number, cells = section
    text = "\n".join(cell.source for cell in cells)
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    titles = re.findall(r"\*\*(?:Core|Stretch|Design)\.\*\* |^# (?:Core|Stretch|Design)\b", text,
                        re.MULTILINE)  # fmt: skip
    assert len(titles) == len(KIND.findall(code)) >= 2, number
    assert len(re.findall(r"\*\*Lab\.\*\*|^# Lab\b", text, re.MULTILINE)) == len(
        set(LAB.findall(code))
    )
    assert not re.search(r"\bof 5\b|\d/5|\bminutes\b", text)
    told = re.sub(r"\bchA1\.at_most\(seed=1\)", "", text)
    assert "seed=1" not in told


def test_each_kind_and_each_lab_is_asked_in_its_notebook():
    asked = {}
    for path in NOTEBOOKS:
        number, notebook = path.stem.partition("_")[0], nbformat.read(path, as_version=4)
        code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
        for name, _ in KIND.findall(code):
            asked.setdefault(name, set()).add(number)
        for name in LAB.findall(code):
            asked.setdefault(name, set()).add(number)
    homes = {name: name.partition(".")[0].removeprefix("ch") for name in KINDS}
    homes |= {name: MILESTONES[name] for name in LABS}
    assert asked == {
        name: {home, BORROWED[name]} if name in BORROWED else {home} for name, home in homes.items()
    }


@pytest.mark.parametrize("name", [*KINDS, *LABS])
def test_an_effort_can_be_believed(name):
    asked = KINDS.get(name) or LABS[name]
    assert 1 <= asked.difficulty <= 5
    assert 2 <= asked.minutes <= 120
