"""A lecture is short: cells, minutes and the length of each cell have limits, and it says them."""

import importlib.util
import json
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
_spec = importlib.util.spec_from_file_location("reading_time", NOTEBOOKS / "reading_time.py")
reading = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reading)


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_no_cell_is_too_long(path):
    assert not reading.too_long_cells(path)


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_lecture_is_short_and_says_how_long_it_is(path):
    found = reading.reading_time(path)
    assert not found.too_long, found
    assert found.stated == found.minutes, "run: python notebooks/reading_time.py --write"


def notebook(tmp_path, *cells):
    """A file with these cells: text, or a pair of code and an output."""
    made = []
    for cell in cells:
        if isinstance(cell, str):
            made.append({"cell_type": "markdown", "source": [cell]})
        else:
            code, output = cell
            made.append({"cell_type": "code", "source": [code], "outputs": [output]})
    path = tmp_path / "one.ipynb"
    path.write_text(json.dumps({"cells": made}), encoding="utf-8")
    return path


def test_what_counts(tmp_path):
    path = notebook(
        tmp_path,
        "# Title\n\n**7 minutes.** Three more words.",
        ("# a comment\n\nfigure(x)\nagain(x)", {"data": {"image/svg+xml": "<svg/>"}}),
        ("print(inspect.getsource(f))", {"text": "def f():\n    return 1\n"}),
        ("print(1)", {"text": "1\n2\n3\n"}),
        "Before.\n\n## Exercises\n\nnot read at all",
        ("answer = None", {"text": ""}),
        "## In real vLLM\n\nread",
    )
    found = reading.reading_time(path)
    assert (found.cells, found.figures, found.stated) == (7, 1, 7)
    assert (found.code, found.output) == (2 + 1 + 2 + 1, 3)
    assert found.words == 2 + 5 + 1 + 5
    assert found.minutes == 2  # 13 words, 6 lines, 3 printed, a figure: 117 seconds
    reading.write_minutes(path)
    assert reading.reading_time(path).stated == 2


def test_what_is_too_long(tmp_path):
    path = notebook(
        tmp_path,
        "word " * 100 + "\n\n" + "word " * 60 + "\n```\n" + "code " * 200 + "\n```",
        "word " * 101,
        "word " * 100 + "\n\n" + "word " * 61,
        ("x\n\n" * 12, {}),
        ("x\n" * 13, {}),
    )
    assert reading.too_long_cells(path) == [
        "1: a paragraph of 101 words", "2: 161 words", "4: 13 lines of code",
    ]  # fmt: skip
