"""The map of a large pool: one small square per block, since nobody can read a thousand tiles."""

from __future__ import annotations

from collections.abc import Container, Iterable
from itertools import groupby

from minivllm.lab.viz.layout import SWATCH_HEIGHT, Swatch
from minivllm.lab.viz.palette import GREY, INK, LINE, PAPER
from minivllm.lab.viz.pool import Pool
from minivllm.lab.viz.svg import Drawing

HELD, SHARED = "#c3e2f5", "#56b4e9"
KINDS = {
    "free": "free",
    "cached": "free, but still cached",
    "held": "held by one sequence",
    "shared": "shared by several",
}


def kind_of(pool: Pool, block_id: int) -> str:
    """What a square says of its block."""
    holders = len(pool.holders.get(block_id, ()))
    if holders:
        return "shared" if holders > 1 else "held"
    return "cached" if block_id in pool.snapshot.cached else "free"


def draw_map(
    drawing: Drawing, pool: Pool, x: float, y: float, columns: int, cell: int,
    changed: Container[int],
) -> None:  # fmt: skip
    """Squares in lines of ``columns``. Equal neighbours are one path, so the file stays small."""
    boxes: dict[str, str] = dict.fromkeys(KINDS, "")
    dots, marks = "", ""
    for first in range(0, pool.num_drawn, columns):
        line = range(first, min(first + columns, pool.num_drawn))
        top = y + first // columns * cell
        for (kind, is_changed), run in groupby(line, lambda b: (kind_of(pool, b), b in changed)):
            ids = list(run)
            left, width = x + (ids[0] - first) * cell, len(ids) * cell
            box = f"M{left:g} {top:g}h{width:g}v{cell}h-{width:g}z"
            boxes[kind] += box
            if kind == "cached":
                dots += f"M{left + cell / 2:g} {top + cell / 2:g}h{width - cell + 0.1:g}"
            if is_changed:
                marks += box
    for kind, d in boxes.items():
        if d:
            _draw_kind(drawing, kind, d, dots, cell)
    _draw_lattice(drawing, pool.num_drawn, x, y, columns, cell)
    if marks:
        drawing.path(marks, fill="none", stroke=INK, stroke_width=1.8)


def map_legend(pools: Iterable[Pool]) -> list[tuple[Swatch, str]]:
    """What the squares of these maps mean."""
    kinds = {kind_of(pool, block_id) for pool in pools for block_id in range(1, pool.num_drawn)}
    return [(_swatch(kind), text) for kind, text in KINDS.items() if kind in kinds]


def _swatch(kind: str) -> Swatch:
    def draw(drawing: Drawing, x: float, y: float) -> None:
        size = SWATCH_HEIGHT
        d = f"M{x + 3:g} {y:g}h{size}v{size}h-{size}z"
        dots = f"M{x + 3 + size / 2:g} {y + size / 2:g}h0.1"
        _draw_kind(drawing, kind, d, dots, size)
        drawing.path(d, fill="none", stroke=LINE)

    return draw


def _draw_kind(drawing: Drawing, kind: str, d: str, dots: str, cell: int) -> None:
    drawing.path(d, fill={"held": HELD, "shared": SHARED}.get(kind, PAPER))
    if kind == "shared":
        drawing.hatch_path(d)
    elif kind == "cached":
        drawing.path(dots, **_dots(cell))


def _dots(cell: int) -> dict[str, str | float]:
    """A line of dots, one in the middle of each square."""
    return {
        "fill": "none", "stroke": GREY, "stroke_width": 2.4, "stroke_linecap": "round",
        "stroke_dasharray": f"0 {cell}",
    }  # fmt: skip


def _draw_lattice(
    drawing: Drawing, num_blocks: int, x: float, y: float, columns: int, cell: int
) -> None:
    whole, rest = divmod(num_blocks, columns)
    d = ""
    for num_columns, top, num_lines in ((columns, y, whole), (rest, y + whole * cell, 1)):
        if num_columns and num_lines:
            right, bottom = num_columns * cell, num_lines * cell
            d += "".join(f"M{x + i * cell:g} {top:g}v{bottom:g}" for i in range(num_columns + 1))
            d += "".join(f"M{x:g} {top + j * cell:g}h{right:g}" for j in range(num_lines + 1))
    drawing.path(d, stroke=LINE, stroke_width=0.6)
