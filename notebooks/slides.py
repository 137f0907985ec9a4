"""Slides of the 90-minute track: ``python notebooks/slides.py`` writes slides.html.

Taken are the cells tagged "core", which are all of 90_minutes.ipynb, with their stored outputs;
nothing is run. A heading begins a new slide, all else goes below it. ``python notebooks/slides.py
05`` takes other notebooks, by number, and ``--to FILE`` writes elsewhere. The page loads reveal.js
from the network when it is opened.
"""

import argparse
from pathlib import Path

import nbformat
from nbconvert import SlidesExporter

HERE = Path(__file__).parent


def core_cells(path: Path) -> list[nbformat.NotebookNode]:
    """The tagged cells, each with its place in the deck; none if no cell is tagged."""
    notebook = nbformat.read(path, as_version=4)
    chosen = [cell for cell in notebook.cells if "core" in cell.metadata.get("tags", [])]
    for index, cell in enumerate(chosen):
        text = cell.source.lstrip()
        kind = "-"
        if index == 0 or (cell.cell_type == "markdown" and text.startswith(("# ", "## "))):
            kind = "slide"
        elif cell.cell_type == "markdown":
            kind = "subslide"
        cell.metadata["slideshow"] = {"slide_type": kind}
        cell.id = f"{path.stem.partition('_')[0]}-{index}"  # others have a cell of this id, too
    return chosen


def deck(paths: list[Path]) -> nbformat.NotebookNode:
    """One notebook of all core cells.

    Raises:
        ValueError: for a notebook without any.
    """
    whole = nbformat.v4.new_notebook()
    for path in paths:
        cells = core_cells(path)
        if not cells:
            raise ValueError(f"{path.name} has no cell with the tag 'core'.")
        whole.cells += cells
    return whole


def write_slides(paths: list[Path], target: Path) -> None:
    exporter = SlidesExporter(reveal_scroll=True)
    body, _ = exporter.from_notebook_node(
        deck(paths), resources={"metadata": {"name": "minivllm in 90 minutes"}}
    )
    target.write_text(body, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("numbers", nargs="*", default=["90"])
    parser.add_argument("--to", type=Path, default=Path("slides.html"))
    given = parser.parse_args()
    write_slides([next(HERE.glob(f"{number}_*.ipynb")) for number in given.numbers], given.to)
    print(given.to)
