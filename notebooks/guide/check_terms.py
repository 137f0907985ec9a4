"""Is each term explained before it is used? ``python notebooks/guide/check_terms.py`` says so.

A term is explained where the notebook that glossary.md names for it first says it with emphasis,
``**term**`` or ``*term*``, or in a heading, its title included; a term with an underscore also as
``code``. Uses before that count, in prose and not in code; not in a notebook's first cell, which
says where it leads, nor in a sentence that points to another notebook.
"""

import json
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
NOTEBOOKS = HERE.parent


@dataclass(frozen=True)
class Place:
    """A cell, and where it stands in the order of the course."""

    notebook: str
    cell: int

    def __str__(self) -> str:
        return f"{self.notebook}[{self.cell}]"


def glossary() -> dict[str, str]:
    """The notebook of each term."""
    lines = (HERE / "glossary.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line[:2] == "| "]
    return {row[0]: row[2] for row in rows if row[0] != "term"}


def prose() -> list[tuple[Place, str]]:
    """The text cells of all notebooks, in order. Of the first one of each only the title."""
    cells = []
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        number = path.name.split("_")[0]
        for index, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
            if cell["cell_type"] == "markdown":
                text = "".join(cell["source"])
                text = text if index else text.splitlines()[0]
                text = re.sub(r"```.*?```", " ", text, flags=re.DOTALL)
                cells.append((Place(number, index), text))
    return cells


def pattern(term: str) -> str:
    """The term, its plural, and either a blank or a hyphen between its words."""
    return r"(?<![\w-])" + r"[\s-]".join(map(re.escape, re.split(r"[ -]", term))) + r"s?(?![\w-])"


def explanation(term: str, notebook: str, cells: list[tuple[Place, str]]) -> int | None:
    """The index of the cell that explains a term."""
    word = pattern(term)
    ways = [rf"\*[^*\n]*{word}[^*\n]*\*", rf"^#+ .*{word}"]
    ways += [f"`{term}[^`]*`"] if "_" in term else []
    said = re.compile("|".join(ways), re.IGNORECASE | re.MULTILINE)
    for index, (place, text) in enumerate(cells):
        if place.notebook == notebook and said.search(text):
            return index
    return None


@cache
def without_pointers(text: str) -> str:
    """Prose without code, headings and the sentences that point to another notebook."""
    text = re.sub(r"`[^`]*`|^#.*", " ", text, flags=re.MULTILINE)
    text = re.sub(r"\([^()]*notebooks? [^()]*\)", "", text)
    return re.sub(r"[^.:;]*\bnotebooks? \w+('s)?\b[^.:;]*", "", text)


def first_use(term: str, cells: list[tuple[Place, str]]) -> Place | None:
    """The first of these cells that uses a term and does not point to another notebook with it."""
    used = re.compile(pattern(term), re.IGNORECASE)
    for place, text in cells:
        if used.search(without_pointers(text)):
            return place
    return None


def findings() -> dict[str, str]:
    """By term, what is wrong with its first use."""
    cells, wrong = prose(), {}
    for term, notebook in glossary().items():
        explained = explanation(term, notebook, cells)
        if explained is None:
            wrong[term] = f"notebook {notebook} does not explain it: write **{term}** where it does"
            continue
        if used := first_use(term, cells[:explained]):
            wrong[term] = f"used in {used}, explained in {cells[explained][0]}"
    return wrong


if __name__ == "__main__":
    found = findings()
    for term, text in found.items():
        print(f"{term:26} {text}")
    print(f"{len(glossary()) - len(found)} of {len(glossary())} terms are explained first")
    sys.exit(bool(found))
