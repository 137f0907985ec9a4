"""Slides of the 90-minute track: ``python notebooks/slides.py`` writes slides.html.

Taken are the cells tagged "core", which are all of 90_minutes.ipynb, with their stored outputs;
nothing is run. A heading begins a new slide, all else goes below it. ``python notebooks/slides.py
05`` takes other notebooks, by number, and ``--to FILE`` writes elsewhere. The page needs nothing
from the network: arrow keys, or a presenter's clicker, go from slide to slide.
"""

import argparse
import html
from pathlib import Path

import nbformat
from nbconvert import HTMLExporter
from pygments.formatters import HtmlFormatter

HERE = Path(__file__).parent
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
html {{ font: 1.5em/1.4 system-ui, sans-serif; scroll-snap-type: y proximity; }}
body {{ margin: 0; }}
section {{ box-sizing: border-box; min-height: 100vh; padding: 4vh 7vw; scroll-snap-align: start;
           border-bottom: 1px solid #ccc; }}
pre, table {{ font-size: 0.75em; overflow-x: auto; }}
td, th {{ padding: 0 0.6em; }}
img, svg {{ max-width: 100%; height: auto; }}
.jp-InputPrompt, .jp-OutputPrompt, .prompt, .anchor-link {{ display: none; }}
{code}
</style></head><body>
{slides}
<script>
const slides = [...document.querySelectorAll("section")];
addEventListener("keydown", event => {{
  const step = {{ArrowRight: 1, PageDown: 1, ArrowLeft: -1, PageUp: -1}}[event.key];
  if (!step) return;
  const at = slides.findLastIndex(slide => slide.getBoundingClientRect().top < 2);
  slides[Math.min(Math.max(at + step, 0), slides.length - 1)].scrollIntoView();
  event.preventDefault();
}});
</script></body></html>
"""


def slides_of(path: Path) -> list[list[nbformat.NotebookNode]]:
    """The tagged cells, slide by slide.

    Raises:
        ValueError: for a notebook without any.
    """
    notebook = nbformat.read(path, as_version=4)
    slides: list[list[nbformat.NotebookNode]] = []
    for cell in notebook.cells:
        if "core" not in cell.metadata.get("tags", []):
            continue
        if not slides or (cell.cell_type == "markdown" and cell.source.startswith(("# ", "## "))):
            slides.append([])
        slides[-1].append(cell)
    if not slides:
        raise ValueError(f"{path.name} has no cell with the tag 'core'.")
    return slides


def write_slides(paths: list[Path], target: Path) -> None:
    exporter = HTMLExporter(template_name="basic")
    sections = []
    for path in paths:
        for cells in slides_of(path):
            body, _ = exporter.from_notebook_node(nbformat.v4.new_notebook(cells=cells))
            sections.append(f"<section>\n{body}\n</section>")
    page = PAGE.format(
        title=html.escape(f"minivllm: {', '.join(path.stem for path in paths)}"),
        code=HtmlFormatter().get_style_defs(".highlight"),
        slides="\n".join(sections),
    )
    target.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("numbers", nargs="*", default=["90"])
    parser.add_argument("--to", type=Path, default=Path("slides.html"))
    given = parser.parse_args()
    write_slides([next(HERE.glob(f"{number}_*.ipynb")) for number in given.numbers], given.to)
    print(given.to)
