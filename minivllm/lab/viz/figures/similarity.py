"""Similarity: how near each text of one list is to each of another, as a table of shades."""

from __future__ import annotations

from collections.abc import Sequence

from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, sheet
from minivllm.lab.viz.draw.palette import INK, LINE, ON_DARK
from minivllm.lab.viz.draw.svg import text_width
from minivllm.lab.viz.draw.wording import as_drawn, count
from minivllm.utils.validation import check

CELL = 56  # pixels
ROW = 26
LEAST = (255, 255, 255)  # the colour of a similarity of 0
MOST = (0, 114, 178)  # and of 1


def similarity(
    numbers: Sequence[Sequence[float]],
    rows: Sequence[str],
    columns: Sequence[str],
    title: str | None = None,
    mark: Sequence[Mark] = (),
) -> Figure:
    """Draw a table: the darker a cell, the nearer its two texts.

    Args:
        numbers: cosines, a list for each row, at most 1; what is below 0 is white, as 0 is.
        rows, columns: the texts; columns are numbered, and their texts listed in a second line.
        title, mark: what it shows, and cells to point at: (row, column, text).

    Raises:
        ValueError: unless each row has a number for each column.
    """
    ok = len(numbers) == len(rows) > 0 and all(len(row) == len(columns) for row in numbers)
    check(ok, "numbers", numbers, f"{len(rows)} rows of {len(columns)}")
    best = [max(range(len(row)), key=row.__getitem__) for row in numbers]
    head = "Cosine of each pair"
    facts = f"{count(len(rows), 'row')}, {count(len(columns), 'column')}; the nearest is framed"
    nearest = "; ".join(f"{row}: {columns[k]}" for row, k in zip(rows, best, strict=True))
    names = max(map(text_width, rows)) + 12
    listed = max(text_width(f"{k}: {text}") for k, text in enumerate(columns))
    top = HEADER_HEIGHT + 22
    bottom = top + len(rows) * ROW + 14 + 18 * len(columns)
    drawing = sheet(
        head, facts, f"{head}. Nearest: {nearest}.",
        MARGIN + max(names + len(columns) * CELL, listed), bottom,
    )  # fmt: skip
    for k, text in enumerate(columns):
        x = MARGIN + names + (k + 0.5) * CELL
        drawing.text(x, top - 6, k, font_weight="bold", text_anchor="middle")
        drawing.text(MARGIN, top + len(rows) * ROW + 26 + 18 * k, f"{k}: {text}")
    lines = []
    for i, row in enumerate(numbers):
        y = top + i * ROW
        drawing.text(MARGIN, y + 17, rows[i])
        for k, number in enumerate(as_drawn(n, 2) for n in row):
            x = MARGIN + names + k * CELL
            share = min(max(number, 0.0), 1.0)
            shade = [round(a + (b - a) * share) for a, b in zip(LEAST, MOST, strict=True)]
            edge = {"stroke": INK, "stroke_width": 2.5} if k == best[i] else {"stroke": LINE}
            fill = f"#{shade[0]:02x}{shade[1]:02x}{shade[2]:02x}"
            drawing.rect(x + 2, y + 2, CELL - 4, ROW - 4, rx=2, fill=fill, **edge)
            ink = ON_DARK if share > 0.6 else INK
            drawing.text(x + CELL / 2, y + 17, f"{number:.2f}", fill=ink, text_anchor="middle")
            drawing.place((i, k), x, y, CELL, ROW)
        shown = (f"[{n:5.2f}]" if k == best[i] else f" {n:5.2f} " for k, n in enumerate(row))
        lines.append(f"{rows[i]:44}{' '.join(shown)}".rstrip())
    lines += [f"{k}: {text}" for k, text in enumerate(columns)]
    return finish(drawing, "\n".join([head, facts, *lines]), title, mark)
