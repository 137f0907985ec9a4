"""Word tiles: which numbers of a weight one packed word has, in each of several layouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, sheet
from minivllm.lab.viz.draw.palette import GREY, LINE, OKABE_ITO, ON_DARK, PAPER
from minivllm.utils.validation import check

SIDE = 16  # cells of a tile
CELL = 14  # pixels
GAP = 20  # pixels between tiles

Place = tuple[int, int]  # input and output: row and column


def word_tiles(
    words: Mapping[str, Sequence[Place]], title: str | None = None, mark: Sequence[Mark] = ()
) -> Figure:
    """Draw a tile of 16 inputs and 16 outputs for each layout, and in it the places of one word.

    Args:
        words: by the layout's name, the (input, output) of each number in the word, the lowest bits
            first; it is drawn as its place in the word.
        title, mark: what it shows, and tiles to point at: (name of the layout, text).

    Raises:
        ValueError: without layouts, or for a place that is outside of the tile.
    """
    check(len(words) > 0, "words", words, "at least one layout")
    for name, places in words.items():
        ok = all(0 <= n < SIDE for place in places for n in place)
        check(ok, f"words[{name!r}]", places, f"pairs of numbers below {SIDE}")
    head = "One word in a tile"
    facts = f"{SIDE} inputs (down) and {SIDE} outputs (across)"
    told = {name: " ".join(f"{k},{n}" for k, n in places) for name, places in words.items()}
    alt = f"{head}: inputs and outputs of its numbers. " + "; ".join(
        f"{name}: {places}" for name, places in told.items()
    )
    size = SIDE * CELL
    top = HEADER_HEIGHT + 22
    drawing = sheet(
        head, facts, f"{alt}.", MARGIN + len(words) * (size + GAP) - GAP, top + size + 10
    )
    for index, (name, places) in enumerate(words.items()):
        left = MARGIN + index * (size + GAP)
        drawing.text(left, top - 7, name, size, font_weight="bold")
        drawing.rect(left, top, size, size, fill=PAPER, stroke=GREY)
        lines = "".join(
            f"M{left + at:g} {top:g}V{top + size:g}M{left:g} {top + at:g}H{left + size:g}"
            for at in range(CELL, size, CELL)
        )
        drawing.path(lines, stroke=LINE, stroke_width=0.5)
        for i, (row, column) in enumerate(places):
            x, y = left + column * CELL, top + row * CELL
            drawing.rect(x, y, CELL, CELL, fill=OKABE_ITO[0])
            drawing.text(x + CELL / 2, y + 11, i, fill=ON_DARK, font_size=11, text_anchor="middle")
        drawing.place((name,), left, top, size, size)
    width = max(map(len, words)) + 2
    lines_of_text = [f"{name:{width}}{places}" for name, places in told.items()]
    return finish(drawing, "\n".join([head, facts, *lines_of_text]), title, mark)
