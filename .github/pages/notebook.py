"""A notebook as a page: its texts as Markdown, its code and its stored outputs as HTML.

Outputs look as cells.js draws them when a reader runs the cell.
"""

import ast
import json
import re
from base64 import b64decode, b64encode
from html import escape
from pathlib import Path

from pages.guess import guess_of, with_fold
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from minivllm.lab.translation import translated
from minivllm.lab.viz.draw.png import dark_png

# Notebooks that run on their page, but for the cells with one of the tags below.
ON_THEIR_PAGE = (
    "02", "03", "04", "04b", "05", "06", "06b", "07", "08", "08b", "22", "90", "A1",
)  # fmt: skip
NEEDS = {
    "needs-model": "a model, and so PyTorch",
    "needs-matplotlib": "matplotlib",
}
FOLDED_IMPORTS = 3  # lines of imports; more are folded
MEASURE = 752  # pixels of a page's column; a wider figure reaches out on both sides
SVG = re.compile(r'<svg\b[^>]*? width="([\d.]+)"')


def read_cells(path: Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def number_of(path: Path) -> str:
    """The number that a notebook's name begins with, such as "04b"."""
    return path.stem.split("_")[0]


def runs_on_its_page(path: Path) -> bool:
    return number_of(path) in ON_THEIR_PAGE


def needs_of(cell: dict) -> str | None:
    """What a cell needs that a browser lacks, in words."""
    tags = NEEDS.keys() & set(cell["metadata"].get("tags", ()))
    return translated(NEEDS[tags.pop()]) if tags else None


def to_markdown(path: Path) -> str:
    """The texts of a notebook, with an empty <div> where a code cell is; ``fill`` fills them.

    A page has one title: the parts of a notebook that has several become its sections.
    """
    parts, cells = [], read_cells(path)
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    has_parts = sum(text.startswith("# ") for text in texts) > 1
    for number, cell in enumerate(cells):
        text = "".join(cell["source"])
        if cell["cell_type"] != "markdown":
            parts.append(f'<div data-cell="{number}"></div>')
        elif number and is_hidden(cells[number - 1]):
            parts.append(with_fold(deeper(text) if has_parts else text))
        else:
            parts.append(deeper(text) if has_parts and number else text)
    return "\n\n".join(parts)


def is_hidden(cell: dict) -> bool:
    """Whether a cell's output is the answer to a guess, and so folded."""
    return cell["metadata"].get("jupyter", {}).get("outputs_hidden", False)


def deeper(text: str) -> str:
    """A text with each heading one level below."""
    return re.sub(r"^(#+) (?=\S)", r"#\1 ", text, flags=re.MULTILINE)


def fill(html: str, path: Path) -> str:
    """The page of a notebook with its code cells."""
    cells, live = read_cells(path), runs_on_its_page(path)
    return re.sub(
        r'<div data-cell="(\d+)"></div>',
        lambda mark: code_cell(cells[int(mark[1])], int(mark[1]), live),
        html,
    )


def code_cell(cell: dict, number: int, live: bool) -> str:
    """A code cell. On a page that runs, cells.js finds its number and what it needs."""
    source = "".join(cell["source"])
    code = f'<div class="code">{highlighted(source)}</div>'
    if (guess := guess_of(source)) is not None:
        code += guess
    if is_imports(source):
        title = translated("Imports")
        code = f'<details class="imports"><summary>{title}</summary>{code}</details>'
    needs = needs_of(cell) if live else None
    told = translated("Needs {needs}. Its stored output:").format(needs=needs)
    note = f'<p class="needs">{told}</p>' if needs else ""
    outputs = f'<div class="outputs">{"".join(map(output, cell["outputs"]))}</div>'
    if is_hidden(cell):
        title = translated("The output")
        outputs = f'<details class="answer"><summary>{title}</summary>{outputs}</details>'
    kind = "cell" if guess is None else "cell guessing"
    attributes = f'class="{kind}" id="cell-{cell["id"]}" data-number="{number}"'
    if live and not needs:
        attributes += " data-runs"
    return f"<div {attributes}>{code}{note}{outputs}</div>"


def is_imports(source: str) -> bool:
    """Whether a cell is imports, settings of the log and no more, and long."""
    lines = [line for line in source.splitlines() if line.strip()]
    plain = (ast.Import, ast.ImportFrom)
    others = [node for node in ast.parse(source).body if not isinstance(node, plain)]
    settings = all(re.match(r"logging|os\.environ", ast.unparse(node)) for node in others)
    return len(lines) > FOLDED_IMPORTS and settings


def highlighted(source: str) -> str:
    return highlight(source, PythonLexer(), HtmlFormatter(cssclass="highlight", wrapcode=True))


def figure(svg: str) -> str:
    """A drawing in a box that scrolls: its letters, of 11 px and more, stay above 10.5."""
    if (found := SVG.search(svg)) is None:
        return f'<div class="figure">{svg}</div>'
    return in_box(svg, "svg", float(found[1]))


def picture(alt: str, light: bytes, dark: bytes) -> str:
    """A PNG for each of the two papers, in such a box; alt is escaped already."""
    one, other = (f"data:image/png;base64,{b64encode(it).decode()}" for it in (light, dark))
    html = (
        f'<picture><source media="(prefers-color-scheme: dark)" srcset="{other}">'
        f'<img alt="{alt}" src="{one}"></picture>'
    )
    return in_box(html, "img", width_of(light))


def in_box(html: str, tag: str, width: float) -> str:
    """HTML of a picture in its box; what is wider than the column reaches out on both sides."""
    sized = html.replace(f"<{tag} ", f'<{tag} style="min-width: {0.96 * width:.0f}px" ', 1)
    return f'<div class="figure{" wide" * (width > MEASURE)}">{sized}</div>'


def width_of(png: bytes) -> int:
    """Pixels of a PNG's width, from its header."""
    return int.from_bytes(png[16:20], "big")


def output(it: dict) -> str:
    """A stored output: the richest form of it that there is."""
    if it["output_type"] == "stream":
        return f'<pre class="{it["name"]}">{escape("".join(it["text"]))}</pre>'
    data = {kind: "".join(text) for kind, text in it["data"].items()}
    alt = escape(it["metadata"].get("image/png", {}).get("alt", ""))
    if "image/svg+xml" in data:
        return figure(data["image/svg+xml"])
    if "image/png" in data:
        light = b64decode(data["image/png"])
        return picture(alt, light, dark_png(light))
    if "text/html" in data:
        return f'<div class="html">{data["text/html"]}</div>'
    if "text/markdown" in data:  # a listing of our own source
        return f'<div class="listing">{highlighted(data["text/plain"])}</div>'
    return f'<pre class="value">{escape(data["text/plain"])}</pre>'
