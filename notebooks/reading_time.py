"""How long a notebook takes to read: ``python notebooks/reading_time.py``.

Words at 200 a minute, lines of code at 15, half a minute a figure; what stands under "Exercises"
comes on top of it. ``--write`` puts the minutes into the headers.
"""

import json
import math
import re
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
MOST_CELLS, MOST_MINUTES = 45, 25
STATED = re.compile(r"\*\*(\d+) minutes\.\*\*")
FIGURES = {"image/svg+xml", "image/png"}


@dataclass(frozen=True)
class ReadingTime:
    """What there is to read in a notebook, its exercises left out."""

    name: str
    cells: int
    """All of them, exercises included."""
    words: int
    code: int
    """Lines of code, also of source that a cell prints; no comments, no blank ones."""
    figures: int
    stated: int | None
    """The minutes that its header promises."""

    @property
    def minutes(self) -> int:
        return math.ceil(self.words / 200 + self.code / 15 + 0.5 * self.figures)

    @property
    def too_long(self) -> bool:
        return self.cells > MOST_CELLS or self.minutes > MOST_MINUTES


def reading_time(path: Path) -> ReadingTime:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    words = code = figures = 0
    for cell in without_exercises(cells):
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            fenced = "\n".join(re.findall(r"```\w*\n(.*?)```", text, re.DOTALL))
            code += lines_of_code(fenced)
            words += len(re.sub(r"```.*?```", "", text, flags=re.DOTALL).split())
            continue
        code += lines_of_code(text)
        for output in cell["outputs"]:
            figures += bool(FIGURES & output.get("data", {}).keys())
            if re.search(r"\bgetsource\(|\bshow\(", text):
                code += lines_of_code(text_of(output))
    stated = STATED.search("".join(cells[0]["source"]))
    return ReadingTime(
        path.stem, len(cells), words, code, figures, int(stated[1]) if stated else None
    )


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
    print("notebook                      cells  words   code  figures  minutes  stated")
    for notebook in notebooks:
        it = reading_time(notebook)
        print(
            f"{it.name:28} {it.cells:6d} {it.words:6,d} {it.code:6d} {it.figures:8d} "
            f"{it.minutes:8d} {it.stated or '-':>7}{'  too long' if it.too_long else ''}"
        )
