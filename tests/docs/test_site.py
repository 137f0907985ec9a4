"""The site without a browser: its cards and links, and its cells where there is no torch."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "notebooks"
LECTURES = sorted(path for path in NOTEBOOKS.glob("*.ipynb") if not path.name.startswith("90_"))
sys.path.insert(0, str(ROOT / ".github"))
from pages import cards, colab, notebook  # noqa: E402

SHORT = NOTEBOOKS / "90_minutes.ipynb"
ON_THEIR_PAGE = [path for path in (*LECTURES, SHORT) if notebook.runs_on_its_page(path)]

# What a browser lacks, and numba, which would only save time.
ABSENT = ("torch", "numpy", "matplotlib", "PIL", "tqdm", "httpx", "ipywidgets", "IPython", "numba")
RUN = f"""\
import json, sys
for name in {ABSENT!r}:
    sys.modules[name] = None
from minivllm.course.playground.answer import answer
for number, source in json.load(sys.stdin):
    print(answer(json.dumps({{"call": "cell", "source": source, "number": number}})))
"""


DEVICE = "Device: cpu (MINIVLLM_DEVICE=cuda: a GPU).\n"


def run(cells):
    """Replies to cells of one notebook, by number, from a Python without torch."""
    asked = [(number, "".join(cell["source"])) for number, cell in cells.items()]
    done = subprocess.run([sys.executable, "-c", RUN], input=json.dumps(asked), cwd=NOTEBOOKS,
                          capture_output=True, text=True, check=True)  # fmt: skip
    return dict(zip(cells, map(json.loads, done.stdout.splitlines()), strict=True))


def shown(output):
    """An output, as two of them are compared."""
    if output["output_type"] == "stream":
        return output["name"], "".join(output["text"])
    return {kind: "".join(text) for kind, text in output["data"].items()}


def test_the_cells_that_run_are_those_of_twelve_notebooks_and_of_the_short_track():
    assert len(ON_THEIR_PAGE) == len(notebook.ON_THEIR_PAGE) == 13
    assert SHORT in ON_THEIR_PAGE
    for path in set(LECTURES) - set(ON_THEIR_PAGE):
        for cell in notebook.read_cells(path):  # the short track takes pieces of them
            assert not notebook.needs_of(cell) or "fast" in cell["metadata"]["tags"], path.name


@pytest.mark.parametrize("path", ON_THEIR_PAGE, ids=lambda path: path.stem)
def test_without_torch_a_cell_prints_what_is_stored_and_a_marked_one_fails(path):
    code = {i: cell for i, cell in enumerate(notebook.read_cells(path)) if "outputs" in cell}
    marked = {i: cell for i, cell in code.items() if notebook.needs_of(cell)}
    others = {i: cell for i, cell in code.items() if i not in marked}
    assert len(others) > (1 if path == SHORT else 2) * len(marked)
    replies = run(others | marked)
    for number, cell in others.items():
        assert "error" not in replies[number], (number, replies[number])
        if "nbval-ignore-output" not in cell["metadata"].get("tags", ()):
            found = [shown(output) for output in replies[number]["outputs"]]
            stored = [shown(output) for output in cell["outputs"]]
            # a page has no engine: it says nothing of a device
            assert found == [each for each in stored if each != ("stdout", DEVICE)], number
    for number in marked:  # a mark is not for convenience
        kind = replies[number]["error"].split(":")[0]
        assert kind in ("ModuleNotFoundError", "NameError", "SyntaxError")


# -- pages -----------------------------------------------------------------------------------------


def test_a_page_folds_imports_and_shows_no_tag():
    path = NOTEBOOKS / "08_prefix_caching.ipynb"
    page = notebook.fill(notebook.to_markdown(path), path)
    assert 'data-cell="' not in page
    assert page.count('<details class="imports">') == 1
    assert page.count('<p class="needs">Needs a model') == 5
    assert page.count(" data-runs>") == 21
    assert page.count('<details class="answer">') == 1  # of a guess
    assert not re.search(r"needs-model|nbval|\bcore\b(?=</)", page)
    assert not notebook.is_imports("import re\nimport os\nimport ast\nprint(re)")
    plain = notebook.fill(notebook.to_markdown(LECTURES[0]), LECTURES[0])
    assert "data-runs" not in plain
    assert '<p class="needs">' not in plain


def test_an_output_is_shown_in_its_richest_form():
    def output(**data):
        kinds = {"svg": "image/svg+xml", "png": "image/png", "text": "text/plain"}
        data = {kinds[name]: [text] for name, text in data.items()}
        metadata = {"image/png": {"alt": 'a "b"'}}
        return notebook.output({"output_type": "display_data", "data": data, "metadata": metadata})

    assert output(text="x", svg="<svg/>") == '<div class="figure"><svg/></div>'
    image = output(png="AA\nAA", text="x")
    assert 'alt="a &quot;b&quot;" src="data:image/png;base64,AAAA"' in image
    assert output(text="1 < 2") == '<pre class="value">1 &lt; 2</pre>'


def test_each_notebook_has_a_card_and_a_box_of_the_map():
    text = cards.with_map(cards.with_cards((NOTEBOOKS / "README.md").read_text(encoding="utf-8")))
    files = {path.stem for path in LECTURES}
    boxes = set(re.findall(r'<a href="([^"]+)\.html">', text))
    assert boxes == files | {"guide/build_your_own"}
    assert set(re.findall(r'<a class="main" href="([^"]+)\.html">', text)) == files
    for number in (path.stem.split("_")[0] for path in LECTURES):
        assert f'href="teach/{number}.html"' in text
    assert text.count("runs on its page") == len(ON_THEIR_PAGE)
    assert "../notebooks" not in text
    assert "| notebook |" not in text
    with pytest.raises(AssertionError, match="another form"):
        cards.cards("| notebook |\n|---|\n| a row |")


def test_the_badge_needs_an_address():
    assert colab.colab({}, "02_x.ipynb") == ""
    assert colab.colab({"Documentation": "https://example.org"}, "02_x.ipynb") == ""
    badge = colab.colab({"Source": "https://github.com/some/where.git"}, "02_x.ipynb")
    assert "colab.research.google.com/github/some/where/blob/main/notebooks/02_x.ipynb" in badge
    assert "git+https://github.com/some/where" in badge


def test_the_site_is_built_with_what_the_extra_names():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extra = re.findall(r'"([^"]+)"', re.search(r"^docs = \[(.*)\]", project, re.MULTILINE)[1])
    assert all(re.fullmatch(r"[\w-]+==[\d.]+", name) for name in extra)  # pinned
    workflow = (ROOT / ".github/workflows/pages.yml").read_text(encoding="utf-8")
    assert f"pip install {' '.join(f'{chr(34)}{name}{chr(34)}' for name in extra)}" in workflow
    command = "mkdocs build --strict -f .github/mkdocs.yml"
    assert command in workflow
    assert command in (NOTEBOOKS / "README.md").read_text(encoding="utf-8")
