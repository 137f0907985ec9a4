"""Share grid: numbers from 0 to 1 as shades, the largest of each row framed."""

from __future__ import annotations

from collections.abc import Sequence

from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, sheet
from minivllm.lab.viz.draw.palette import INK, LINE, ON_DARK
from minivllm.lab.viz.draw.svg import text_width
from minivllm.lab.viz.draw.wording import as_drawn, count
from minivllm.utils.validation import check

CELL = 68  # pixels
ROW = 28
LEAST = (255, 255, 255)  # the colour of a share of 0
MOST = (0, 114, 178)  # and of 1


def share_grid(
    shares: Sequence[Sequence[float]],
    rows: Sequence[str],
    columns: Sequence[str],
    title: str | None = None,
    mark: Sequence[Mark] = (),
) -> Figure:
    """Draw a table of shares: the darker a cell, the larger.

    Args:
        shares: a list for each row, with a number from 0 to 1 for each column.
        rows, columns: their names; no two columns have the same.
        title, mark: what it shows, and cells to point at: (row, column, text), by number.

    Raises:
        ValueError: unless each row has a share for each column.
    """
    ok = len(shares) == len(rows) > 0 and all(len(row) == len(columns) > 0 for row in shares)
    check(ok, "shares", shares, f"{len(rows)} rows of {len(columns)}")
    ok = all(-1e-6 <= share <= 1 + 1e-6 for row in shares for share in row)
    check(ok, "shares", shares, "numbers from 0 to 1")
    drawn = [[as_drawn(share, 2) for share in row] for row in shares]
    best = [max(range(len(row)), key=row.__getitem__) for row in drawn]
    head = "Shares, from 0 to 1"
    facts = f"{count(len(rows), 'row')}, {count(len(columns), 'column')}; the largest is framed"
    told = "; ".join(f"{row}: {columns[k]}" for row, k in zip(rows, best, strict=True))
    names = max(map(text_width, rows)) + 12
    top = HEADER_HEIGHT + 22
    bottom = top + len(rows) * ROW + 8
    right = MARGIN + names + len(columns) * CELL
    drawing = sheet(head, facts, f"{head}. The largest of each row: {told}.", right, bottom)
    for k, name in enumerate(columns):
        x = MARGIN + names + (k + 0.5) * CELL
        drawing.text(x, top - 6, name, CELL, font_weight="bold", text_anchor="middle")
    lines = [" " * 16 + "".join(f"{name:>10}" for name in columns)]
    for i, row in enumerate(drawn):
        y = top + i * ROW
        drawing.text(MARGIN, y + 18, rows[i])
        for k, share in enumerate(row):
            x = MARGIN + names + k * CELL
            shade = [round(a + (b - a) * share) for a, b in zip(LEAST, MOST, strict=True)]
            edge = {"stroke": INK, "stroke_width": 2.5} if k == best[i] else {"stroke": LINE}
            fill = f"#{shade[0]:02x}{shade[1]:02x}{shade[2]:02x}"
            drawing.rect(x + 2, y + 2, CELL - 4, ROW - 4, rx=2, fill=fill, **edge)
            ink = ON_DARK if share > 0.6 else INK
            drawing.text(x + CELL / 2, y + 18, f"{share:.2f}", fill=ink, text_anchor="middle")
            drawing.place((i, k), x, y, CELL, ROW)
        shown = (f"    [{n:.2f}]" if k == best[i] else f"     {n:.2f} " for k, n in enumerate(row))
        lines.append(f"{rows[i]:16}{''.join(shown)}".rstrip())
    return finish(drawing, "\n".join([head, facts, *lines]), title, mark)
