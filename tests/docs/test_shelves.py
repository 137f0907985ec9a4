"""The package is small where it says so: lines of code on each shelf, and the README's table."""

import re
from pathlib import Path

import pytest
import shelves

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture(scope="module")
def counted():
    return shelves.lines_by_shelf()


@pytest.mark.parametrize("shelf", shelves.BOUNDS)
def test_a_shelf_holds_no_more_than_it_may(counted, shelf):
    """A feature that needs more raises the bound in ``.ci/shelves.py``, and says why."""
    assert 0 < counted[shelf] <= shelves.BOUNDS[shelf]


def test_the_readme_prints_the_table(counted):
    assert shelves.table() in README.read_text(encoding="utf-8"), "run: python .ci/shelves.py"
    everything = sum(lines for shelf, lines in counted.items() if shelf != "evening")
    files = sorted(shelves.PACKAGE.rglob("*.py"))
    assert everything == sum(len(shelves.code_lines(path)) for path in files)


def test_few_lines_of_the_evening_speak_of_a_feature():
    found = list(shelves.feature_lines())
    assert 100 < len(found) <= shelves.FEATURE_LINES


@pytest.mark.parametrize("feature", shelves.FEATURES)
def test_the_words_of_a_feature_find_it(feature):
    """None is searched for in vain: else its lines would not be counted."""
    names = [name for *_, features in shelves.feature_lines() for name in features]
    assert feature in names


def test_what_is_no_code_is_not_counted(tmp_path):
    path = tmp_path / "file.py"
    path.write_text(
        '"""Docstring.\n\nOf two lines."""\n\n# a comment\nx = 1  # another\n\n\ny = """\n"""\n'
    )
    assert [number for number, _ in shelves.code_lines(path)] == [6, 9, 10]
    assert re.search("x = 1", shelves.code_lines(path)[0][1])
