"""Rules for committed notebooks and pictures: executed, quiet, small and current."""

import importlib.util
import re
from pathlib import Path

import nbformat
import pytest
from marked_figures import callouts, distance, root_of, tooltips_at

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SHORT = ROOT / "notebooks" / "90_minutes.ipynb"  # pieces of lectures, and none itself
LECTURES = [path for path in NOTEBOOKS if path != SHORT]


def code_cells(path):
    notebook = nbformat.read(path, as_version=4)
    return [c for c in notebook.cells if c.cell_type == "code" and c.source.strip()]


def outputs(path, *types):
    return [o for c in code_cells(path) for o in c.outputs if o.output_type in types]


@pytest.fixture(params=NOTEBOOKS, ids=lambda p: p.stem)
def path(request):
    return request.param


def test_the_readme_lists_every_notebook():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"\(notebooks/(\w+)\.ipynb\)", readme)
    assert listed == [p.stem for p in (SHORT, *LECTURES)]


def test_every_cell_was_executed_in_order(path):
    counts = [cell.execution_count for cell in code_cells(path)]
    assert counts == list(range(1, len(counts) + 1)), "run: python notebooks/execute.py"


def test_no_stderr_no_error_no_widget_state_no_wall_clock(path):
    assert not [o for o in outputs(path, "stream") if o.name == "stderr"]
    assert not outputs(path, "error")
    metadata = nbformat.read(path, as_version=4).metadata
    assert set(metadata) == {"kernelspec", "language_info"}


def test_nothing_live_is_committed(path):
    view = "application/vnd.jupyter.widget-view+json"
    assert not [o for o in outputs(path, "execute_result", "display_data") if view in o.data]


def test_its_chapter_has_a_mark(path, pytestconfig):
    """``pytest -m chapter05`` runs what belongs to notebook 05."""
    marks = [line.partition(":")[0] for line in pytestconfig.getini("markers")]
    assert f"chapter{path.stem[:2]}" in marks


def test_it_is_small(path):
    assert path.stat().st_size < 300_000


def test_nothing_of_this_machine_is_in_it(path):
    text = path.read_text()
    for place in (str(ROOT), str(Path.home()) + "/", "site-packages"):
        assert place not in text


@pytest.mark.parametrize("path", LECTURES, ids=lambda p: p.stem)
def test_it_has_objectives_and_minutes_and_an_end(path):
    notebook = nbformat.read(path, as_version=4)
    first = notebook.cells[0].source
    assert first.startswith(f"# {path.stem.partition('_')[0]} · ")
    assert "you can" in first
    assert "minutes" in first
    text = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    for heading in ("The problem", "Predict", "Build", "See", "Break it", "Measure", "Exercises",
                    "In real vLLM", "Take away"):  # fmt: skip
        assert f"## {heading}" in text


def test_our_figures_carry_a_description(path):
    shown = outputs(path, "execute_result", "display_data")
    figures = [o.data["image/svg+xml"] for o in shown if "image/svg+xml" in o.data]
    plots = [o for o in shown if "alt" in o.metadata.get("image/png", {})]
    assert len(figures) + len(plots) >= 2
    assert all("<desc>" in svg or "<desc " in svg for svg in figures)


def marked(path):
    """The figures of a notebook in which something is marked."""
    shown = outputs(path, "execute_result", "display_data")
    svgs = [o.data["image/svg+xml"] for o in shown if "image/svg+xml" in o.data]
    return [root_of(svg) for svg in svgs if "data-mark" in svg]


def test_words_of_marks_are_beside_their_places(path):
    """They are at most 30 pixels from the frame. One in a notebook may be in a row on top."""
    found = [callout for root in marked(path) for callout in callouts(root)]
    far = [words for _, frame, box, words in found if distance(frame, box) > 30]
    assert len(far) <= 1, far


DOES = {
    r"\bwaits?\b": "waiting",
    r"in chunks": "prefill",
}  # words, and a cell of which they are true


def test_a_mark_is_at_the_cell_that_it_names(path):
    """A timeline's mark is in its row and step, and the cell does what the words say."""
    for root in marked(path):
        for place, frame, _, words in callouts(root):
            told = [re.match(r"(\w+), steps? (\d+)(?:–(\d+))?: (\w+)", t or "") for t in
                    tooltips_at(root, frame)]  # fmt: skip
            for found in filter(None, told):
                letter, first, last, kind = found.groups()
                assert place.split()[-2] == letter, (place, words)
                assert int(first) <= int(place.split()[-1]) <= int(last or first), (place, words)
                needed = [k for said, k in DOES.items() if re.search(said, words)]
                assert all(kind == k for k in needed), (place, words, kind)


def test_its_pictures_are_files_below_the_notebooks(path):
    """Jupyter shows no file from above the folder in which it was started."""
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            for place in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", cell.source):
                file = (path.parent / place).resolve()
                assert file.is_relative_to(path.parent.resolve()), place
                assert file.is_file(), place


def test_there_is_a_test_file_of_the_same_name(path):
    assert len(list((ROOT / "tests").rglob(f"test_{path.stem}.py"))) == 1


def test_the_pictures_are_current():
    spec = importlib.util.spec_from_file_location("draw", ROOT / "diagrams" / "draw.py")
    draw = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(draw)
    for name, function in draw.PICTURES.items():
        committed = draw.path_of(name).read_text(encoding="utf-8")
        assert function().svg == committed, "run: python diagrams/draw.py"


@pytest.mark.slow
def test_the_readmes_python_runs(capsys):
    """All of it, in one session, as a reader would paste it."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 3
    names = {}
    for block in blocks:
        exec(block, names)
    out = capsys.readouterr().out
    assert "The capital of France is" in out
    assert out.count("Timeline, steps") == 2
