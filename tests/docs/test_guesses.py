"""A guess comes before its answer, and a cell has at most two outputs: in every notebook."""

import re
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
GUESS = re.compile(r"^((?:my_\w+, )*my_\w+) =", re.MULTILINE)
# Cells that still have their answer in them, or far behind. The list may only shrink.
ANSWERED_ELSEWHERE = {
    ("A5", "cell-05"),  # answered where both models have run
    ("13b", "cell-04"),  # answered after five cells that define what is counted
}
# Cells with three outputs. The list may only shrink.
THREE_OUTPUTS = {("04", "cell-12"), ("13", "c21"), ("A1", "c10"), ("A1", "c12")}


def code_of(path):
    """Code cells of a lecture in order; not those of exercises, which answer, and of "Yours"."""
    cells, inside = [], False
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            headings = re.findall(r"^## (.*)$", cell.source, re.MULTILINE)
            inside = headings[-1] in ("Exercises", "Yours") if headings else inside
        elif not inside and not re.search(r"^ask\(", cell.source, re.MULTILINE):
            cells.append(cell)
    return cells


def printed(cell) -> str:
    return "".join(output.get("text", "") for output in cell.outputs)


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def lecture(request):
    return request.param.stem.partition("_")[0], code_of(request.param)


def test_a_guess_has_a_cell_of_its_own_and_the_next_one_says_what_was_guessed(lecture):
    """So *Run* gives no answer away, and none is far behind its question."""
    number, cells = lecture
    found = set()
    for index, cell in enumerate(cells):
        names = [name for line in GUESS.findall(cell.source) for name in line.split(", ")]
        if not names:
            continue
        answer = cells[index + 1] if index + 1 < len(cells) else None
        told = answer is not None and re.search(r"guess|you said", printed(answer))
        used = told and all(re.search(rf"\b{name}\b", answer.source) for name in names)
        if cell.outputs or not used:
            found.add((number, cell.id))
    assert found == {place for place in ANSWERED_ELSEWHERE if place[0] == number}


def test_a_cell_has_at_most_two_outputs(lecture):
    """Printed lines are one of them, and so is each listing and each picture."""
    number, cells = lecture
    found = {(number, cell.id) for cell in cells if len(cell.outputs) > 2}
    assert found == {place for place in THREE_OUTPUTS if place[0] == number}


def test_there_are_guesses_in_nearly_all_lectures():
    with_one = [path for path in NOTEBOOKS if any(GUESS.search(c.source) for c in code_of(path))]
    assert len(with_one) >= len(NOTEBOOKS) - 4
