"""Low rank: a weight, and beside it the two thin matrices whose product changes it, to scale."""

from __future__ import annotations

from collections.abc import Sequence

from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, sheet
from minivllm.lab.viz.draw.palette import GREY, INK, LINE, OKABE_ITO
from minivllm.lab.viz.draw.svg import text_width
from minivllm.utils.validation import check, is_int

# Sizes in pixels.
LONGEST = 220
THINNEST = 4
GAP = 40
LINE_HEIGHT = 16


def low_rank(
    out_features: int, in_features: int, rank: int, title: str | None = None,
    mark: Sequence[Mark] = (),
) -> Figure:  # fmt: skip
    """Draw W, B and A of one layer as rectangles, as high as rows and as wide as columns.

    Args:
        out_features, in_features: of the layer: rows and columns of W.
        rank: columns of B and rows of A.
        title, mark: what it shows, and matrices to point at: ("W", "B" or "A", text).

    Raises:
        ValueError: for a size below 1, or a rank above the smaller side of W.
    """
    for name, size in (("out_features", out_features), ("in_features", in_features)):
        check(is_int(size, 1), name, size, "an integer of at least 1")
    smaller = min(out_features, in_features)
    check(is_int(rank, 1) and rank <= smaller, "rank", rank, f"an integer from 1 to {smaller}")
    shapes = {"W": (out_features, in_features), "B": (out_features, rank), "A": (rank, in_features)}
    numbers = {name: rows * columns for name, (rows, columns) in shapes.items()}
    added = numbers["B"] + numbers["A"]
    head = f"W and B A of a layer from {in_features} to {out_features}, rank {rank}"
    facts = f"{added:,} numbers beside {numbers['W']:,}: {added / numbers['W']:.1%}"
    told = {
        name: f"{rows} × {columns}: {numbers[name]:,} numbers"
        for name, (rows, columns) in shapes.items()
    }
    scale = LONGEST / max(out_features, in_features)
    sizes = {
        name: (max(THINNEST, columns * scale), max(THINNEST, rows * scale))
        for name, (rows, columns) in shapes.items()
    }
    labels = {name: f"{rows} × {columns}" for name, (rows, columns) in shapes.items()}
    widths = {name: max(sizes[name][0], 22 + text_width(labels[name], 11)) for name in shapes}
    right = MARGIN + sum(widths.values()) + 2 * GAP
    top = HEADER_HEIGHT + LINE_HEIGHT
    bottom = top + max(height for _, height in sizes.values()) + LINE_HEIGHT + 8
    alt = f"{head}. {'; '.join(f'{name} is {words}' for name, words in told.items())}."
    drawing = sheet(head, facts, alt, right, bottom)
    x = float(MARGIN)
    for name, colour in (("W", "#dadada"), ("B", OKABE_ITO[1]), ("A", OKABE_ITO[0])):
        width, height = sizes[name]
        drawing.text(x, top - 6, name, font_weight="bold")
        drawing.rect(x, top, width, height, fill=colour, stroke=LINE if name == "W" else INK)
        drawing.place((name,), x, top, width, height)
        drawing.text(x + 18, top - 6, labels[name], fill=GREY, font_size=11)
        drawing.text(x, top + height + 14, f"{numbers[name]:,}", fill=GREY, font_size=11)
        if name != "A":
            sign = "+ s ·" if name == "W" else "·"
            middle = x + (width if name == "W" else widths[name]) + GAP / 2
            drawing.text(middle, top + 14, sign, text_anchor="middle")
        x += widths[name] + GAP
    lines = [head, facts, *(f"{name}  {words}" for name, words in told.items())]
    return finish(drawing, "\n".join(lines), title, mark)
