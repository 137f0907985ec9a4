"""Slides: the core cells of notebooks, in order, with their outputs and nothing else."""

import importlib.util
import re
import sys
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


@pytest.fixture(scope="module")
def slides():
    sys.path.insert(0, str(NOTEBOOKS))
    spec = importlib.util.spec_from_file_location("slides", NOTEBOOKS / "slides.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(NOTEBOOKS))


def make(path, *cells):
    new = nbformat.v4
    notebook = new.new_notebook()
    for text, tags in cells:
        if text.startswith("print"):
            output = new.new_output("stream", text="42 printed\n")
            cell = new.new_code_cell(text, outputs=[output])
        else:
            cell = new.new_markdown_cell(text)
        cell.metadata["tags"] = tags
        notebook.cells.append(cell)
    nbformat.write(notebook, path)
    return path


def test_core_cells_become_slides(slides, tmp_path):
    one = make(
        tmp_path / "00_one.ipynb",
        ("# One", ["core"]), ("left out", []), ("print(42)", ["core"]), ("said below", ["core"]),
        ("## Next", ["core"]),
    )  # fmt: skip
    assert [[cell.source for cell in slide] for slide in slides.slides_of(one)] == [
        ["# One", "print(42)", "said below"], ["## Next"],
    ]  # fmt: skip
    two = make(
        tmp_path / "01_two.ipynb",
        ("# Two", ["core"]),
        ("print(42)", ["core"]),
        ("said below", ["core"]),
    )
    slides.write_slides([one, two], tmp_path / "deck.html")
    page = (tmp_path / "deck.html").read_text(encoding="utf-8")
    assert page.count("<section>") == 3
    assert not re.search(r"(src|href)=.?https?://|@import|url\(", page), "it works offline"
    assert page.count("42 printed") == page.count("said below") == 2
    assert "left out" not in page


def test_a_notebook_without_core_cells_is_refused(slides, tmp_path):
    bare = make(tmp_path / "01_bare.ipynb", ("# One", []))
    with pytest.raises(ValueError, match=r"01_bare.ipynb has no cell with the tag 'core'"):
        slides.slides_of(bare)


LECTURES = [path for path in sorted(NOTEBOOKS.glob("*.ipynb")) if path.stem != "90_minutes"]


@pytest.mark.parametrize("path", LECTURES, ids=lambda path: path.stem)
def test_every_lecture_can_be_projected(slides, path):
    cells = [cell for slide in slides.slides_of(path) for cell in slide]
    assert cells[0].source.startswith("# ")
    headings = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    for heading in ("## The problem", "## Build", "## See", "## Take away"):
        assert heading in headings
    assert len(cells) < 40


def test_the_short_track_is_projected_as_it_is(slides):
    path = NOTEBOOKS / "90_minutes.ipynb"
    cells = nbformat.read(path, as_version=4).cells
    shown = [cell.source for slide in slides.slides_of(path) for cell in slide]
    assert shown == [cell.source for cell in cells]
