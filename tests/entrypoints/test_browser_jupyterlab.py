"""The lectures in JupyterLab, started as they say at their top: ``pytest -m browser``."""

import json
import re
import shutil
from pathlib import Path

import pytest
from jupyterlab_server import serving_lab

pytestmark = pytest.mark.browser
NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
WIDTHS = (400, 800, 1180, 1440, 1920)
SECONDS = 120_000  # milliseconds
PICTURE = re.compile(r"!\[([^\]]+)\]\((?!data:|attachment:)[^)]+\)")
# A notebook is put on the page bit by bit, and faster where it is looked at.
SCROLL = """notebook => { const it = notebook.querySelector(".jp-WindowedPanel-outer");
  it.scrollTop += it.clientHeight; return notebook.querySelectorAll(".jp-Cell").length; }"""
SIZES = """all => Promise.all(all.map(
  it => it.decode().then(() => [it.alt, it.naturalWidth], () => [it.alt, 0])))"""


def cells_of(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def pictures_of(path):
    """Words for the pictures in the texts of a notebook."""
    texts = ["".join(cell["source"]) for cell in cells_of(path) if cell["cell_type"] == "markdown"]
    return [alt for text in texts for alt in PICTURE.findall(text)]


WITH_PICTURES = [path.name for path in sorted(NOTEBOOKS.glob("*.ipynb")) if pictures_of(path)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """JupyterLab over copies of the repository's notebooks."""
    root = tmp_path_factory.mktemp("lab")
    folder = root / "clone/notebooks"
    folder.mkdir(parents=True)
    for name in WITH_PICTURES:
        shutil.copy(NOTEBOOKS / name, folder)
    shutil.copytree(NOTEBOOKS / "diagrams", folder / "diagrams")
    with serving_lab(root / "clone", root) as url:
        yield url + "notebooks/"


def test_the_first_lecture_has_pictures():
    assert WITH_PICTURES[0] == "00_quickstart.ipynb"


@pytest.mark.parametrize("name", WITH_PICTURES)
def test_no_picture_of_a_lecture_is_missing(chromium, lab, name):
    """At each width, in a light and in a dark theme of the system."""
    context = chromium.new_context(viewport={"width": WIDTHS[0], "height": 900})
    view = context.new_page()
    view.goto(lab + name)
    notebook = view.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")  # others may be open, too
    notebook.locator(".jp-RenderedMarkdown h1").first.wait_for(timeout=SECONDS)
    while notebook.evaluate(SCROLL) < len(cells_of(NOTEBOOKS / name)):
        view.wait_for_timeout(100)
    told = pictures_of(NOTEBOOKS / name)
    pictures = notebook.locator(".jp-RenderedMarkdown img")
    pictures.nth(len(told) - 1).wait_for(state="attached", timeout=SECONDS)
    for width in WIDTHS:
        view.set_viewport_size({"width": width, "height": 900})
        for scheme in ("light", "dark"):
            view.emulate_media(color_scheme=scheme)
            found = pictures.evaluate_all(SIZES)
            assert [alt for alt, _ in found] == told
            assert all(size for _, size in found), (width, scheme)
    context.close()
