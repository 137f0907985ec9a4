"""The short track: pieces of five notebooks in one, and no term before it is explained."""

import ast
import importlib.util
import re
import sys
from pathlib import Path

import nbformat
import pytest
from exercise_kinds import KINDS

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
CELLS = nbformat.read(NOTEBOOKS / "90_minutes.ipynb", as_version=4).cells
CODE = [cell.source for cell in CELLS if cell.cell_type == "code"]


def load(path: str):
    """A module beside the notebooks, which imports others from there."""
    sys.path.insert(0, str(NOTEBOOKS))
    spec = importlib.util.spec_from_file_location(Path(path).stem, NOTEBOOKS / path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path.remove(str(NOTEBOOKS))
    return module


@pytest.fixture(scope="module")
def ninety():
    return load("ninety.py")


def test_it_is_what_its_sources_are(ninety):
    def told(cells):
        return [
            (c.id, c.cell_type, c.metadata, re.sub(r"\*\*\d+ min", "", c.source)) for c in cells
        ]

    assert told(CELLS) == told(ninety.build().cells), "run: python notebooks/course.py"


def test_reading_and_exercises_take_90_minutes():
    reading = load("reading_time.py").reading_time(NOTEBOOKS / "90_minutes.ipynb")
    asked = re.findall(r"ask\((ch\w+\.\w+)\(", "\n".join(CODE))
    assert 75 <= reading.minutes + sum(KINDS[name].minutes for name in asked) <= 90


def test_each_part_ends_with_an_exercise_of_its_notebook(ninety):
    for number, (title, _) in ninety.PARTS.items():
        part = [cell for cell in CELLS if cell.id.startswith(f"{number}-")]
        assert title in part[0].source.splitlines()[0]
        assert f"ask(ch{number}." in part[-1].source


def test_a_term_is_explained_before_it_is_used():
    check_terms = load("guide/check_terms.py")
    texts = [(check_terms.Place("90", n), cell.source) for n, cell in enumerate(CELLS)
             if cell.cell_type == "markdown" and n > 0]  # fmt: skip
    found = {}
    for term in check_terms.glossary():
        explained = check_terms.explanation(term, "90", texts)
        if used := check_terms.first_use(term, texts[:explained]):
            found[term] = str(used)
    assert not found


def test_no_part_gives_an_imported_name_to_something_else():
    imported = {
        alias.name
        for node in ast.parse(CODE[0]).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    given = set()
    for source in CODE:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                given.add(node.id)
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                given.add(node.name)
    assert len(imported) > 10
    assert not imported & given


def test_a_text_is_cut_at_its_headings(ninety, tmp_path, monkeypatch):
    text = "One.\n\n## Two\n\nTwo.\n\n### Three\n\nThree."
    new = nbformat.v4.new_markdown_cell
    tags = ("fast", "core", "fast-above", "fast-below")
    cells = [new(text, metadata={"tags": [tag]}) for tag in tags]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "00_one.ipynb")
    monkeypatch.setattr(ninety, "HERE", tmp_path)
    assert [c.source for c in ninety.fast_cells("00")] == [text, "One.", "### Three\n\nThree."]


def test_imports_are_merged_as_far_as_they_are_used(ninety, tmp_path, monkeypatch):
    new = nbformat.v4.new_code_cell
    for name, first in {
        "00_one": "import re\nfrom math import pi, tau\n\nre.purge()  # twice",
        "01_two": "import re\nimport ast\nfrom math import e\n\nre.purge()",
    }.items():
        nbformat.write(nbformat.v4.new_notebook(cells=[new(first)]), tmp_path / f"{name}.ipynb")
    monkeypatch.setattr(ninety, "HERE", tmp_path)
    cell = ninety.imports({"00": [new("print(tau)")], "01": [new("e")]})
    assert cell.source == "import re\n\nfrom math import e, tau\n\nre.purge()"
