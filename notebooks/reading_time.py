"""How long a notebook takes to read: ``python notebooks/reading_time.py``.

180 words, 8 lines of code, 25 lines of output or one figure a minute; exercises come on top of it.
``--write`` puts the minutes into the headers.
"""

import json
import math
import re
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
MOST_CELLS, MOST_MINUTES = 45, 45
MOST_CODE, MOST_PARAGRAPH, MOST_TEXT = 12, 100, 160  # lines of a code cell; words
STATED = re.compile(r"\*\*(\d+) minutes\.\*\*")
FIGURES = {"image/svg+xml", "image/png"}


@dataclass(frozen=True)
class ReadingTime:
    """Amount to read in a notebook, its exercises left out."""

    name: str
    cells: int
    """All of them, exercises included."""
    words: int
    code: int
    """Lines of code, also of source that a cell prints; no comments, no blank ones."""
    output: int
    """Lines of other printed output."""
    figures: int
    stated: int | None
    """The minutes that its header promises."""

    @property
    def minutes(self) -> int:
        return math.ceil(self.words / 180 + self.code / 8 + self.output / 25 + self.figures)

    @property
    def too_long(self) -> bool:
        lectures = 2 if self.name == "90_minutes" else 1  # the short track has the time of two
        return self.cells > lectures * MOST_CELLS or self.minutes > lectures * MOST_MINUTES


def reading_time(path: Path) -> ReadingTime:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    words = code = printed = figures = 0
    for cell in without_exercises(cells):
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            fenced = "\n".join(re.findall(r"```\w*\n(.*?)```", text, re.DOTALL))
            code += lines_of_code(fenced)
            words += len(re.sub(r"```.*?```", "", text, flags=re.DOTALL).split())
            continue
        code += lines_of_code(text)
        for output in cell["outputs"]:
            if FIGURES & output.get("data", {}).keys():
                figures += 1
            elif re.search(r"\bgetsource\(|\bshow\(", text):
                code += lines_of_code(text_of(output))
            else:
                printed += len([line for line in text_of(output).splitlines() if line.strip()])
    stated = STATED.search("".join(cells[0]["source"]))
    return ReadingTime(
        path.stem, len(cells), words, code, printed, figures, int(stated[1]) if stated else None
    )


def too_long_cells(path: Path) -> list[str]:
    """The cells over a limit, each by its number and what is too long in it.

    A paragraph is what blank lines separate; fenced code is none. Blank lines of code do not count.
    """
    found = []
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        text = "".join(cell["source"])
        if cell["cell_type"] == "code":
            lines = len([line for line in text.splitlines() if line.strip()])
            if lines > MOST_CODE:
                found.append(f"{number}: {lines} lines of code")
            continue
        prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        longest = max(len(part.split()) for part in re.split(r"\n\s*\n", prose))
        if longest > MOST_PARAGRAPH:
            found.append(f"{number}: a paragraph of {longest} words")
        if len(prose.split()) > MOST_TEXT:
            found.append(f"{number}: {len(prose.split())} words")
    return found


def without_exercises(cells: list[dict]) -> list[dict]:
    """All cells but those under the heading "Exercises", up to the next heading of its rank."""
    kept, inside = [], False
    for cell in cells:
        text = "".join(cell["source"])
        if cell["cell_type"] != "markdown":
            if not inside:
                kept.append(cell)
            continue
        parts = re.split(r"^(?=## )", text, flags=re.MULTILINE)
        read = []
        for part in parts:
            if part.startswith("## "):
                inside = part.startswith("## Exercises")
            if not inside:
                read.append(part)
        if read:
            kept.append({**cell, "source": read})
    return kept


def lines_of_code(text: str) -> int:
    return sum(1 for line in text.splitlines() if line.strip() and line.strip()[0] not in "#`")


def text_of(output: dict) -> str:
    data = output.get("data", {})
    return "".join(output.get("text", data.get("text/markdown", data.get("text/plain", ""))))


def write_minutes(path: Path) -> None:
    """Put the minutes into the header, and leave every other byte as it is."""
    found = reading_time(path)
    text = path.read_text(encoding="utf-8")
    new = STATED.sub(f"**{found.minutes} minutes.**", text, count=1)
    if new != text:
        path.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    notebooks = sorted(HERE.glob("*.ipynb"))
    if "--write" in sys.argv[1:]:
        for notebook in notebooks:
            write_minutes(notebook)
    print("notebook                      cells  words   code  output  figures  minutes  stated")
    for notebook in notebooks:
        it = reading_time(notebook)
        print(
            f"{it.name:28} {it.cells:6d} {it.words:6,d} {it.code:6d} {it.output:7d} "
            f"{it.figures:8d} "
            f"{it.minutes:8d} {it.stated or '-':>7}{'  too long' if it.too_long else ''}"
        )
        for cell in too_long_cells(notebook):
            print(f"    cell {cell}")
