"""Layout: margins, header and legend of every SVG figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minivllm.lab.viz.draw.palette import GREY, ON_DARK, PAPER, Owner
from minivllm.lab.viz.draw.svg import Drawing, text_width

MARGIN = 16
MAX_WIDTH = 960
HEADER_HEIGHT = 56  # the margin above included
LEGEND_LINE = 20
SWATCH_WIDTH = 20
SWATCH_HEIGHT = 14

# A legend speaks of all requests, so its swatches have the colour of none.
NOBODY = Owner("", "", solid="#6e6e6e", light="#dadada", edge="#4a4a4a", ink=ON_DARK)

Swatch = Callable[[Drawing, float, float], None]


def _legend_places(legend: Sequence[tuple[Swatch, str]], width: float) -> list[tuple[float, int]]:
    """Left edge and line of each entry: they flow into lines of this width."""
    places = []
    x = 0.0
    line = 0
    for _, label in legend:
        needed = SWATCH_WIDTH + 6 + text_width(label)
        if x > 0 and x + needed > width:
            x = 0.0
            line += 1
        places.append((MARGIN + x, line))
        x += needed + 14
    return places


def sheet(
    title: str, facts: str, alt: str, right: float, bottom: float,
    legend: Sequence[tuple[Swatch, str]] = (), **attributes,
) -> Drawing:  # fmt: skip
    """Paper for a picture that ends at (right, bottom), with its header above and legend below.

    It is wide enough for the header, and for the legend in one line if any paper is.
    """
    row = sum(SWATCH_WIDTH + 20 + text_width(label) for _, label in legend)
    words = max(text_width(title, 15, bold=True), text_width(facts), row)
    width = max(right + MARGIN, min(MAX_WIDTH, 2 * MARGIN + words))
    places = _legend_places(legend, width - 2 * MARGIN)
    height = bottom + LEGEND_LINE * (1 + max((line for _, line in places), default=-1)) + MARGIN / 2
    drawing = Drawing(width, height, title, alt, **attributes)
    with drawing.group():  # its own, for a claim to take its place
        room = width - 2 * MARGIN
        drawing.text(MARGIN, MARGIN + 12, title, room, font_size=15, font_weight="bold")
        drawing.text(MARGIN, MARGIN + 30, facts, room, font_size=12, fill=GREY)
    for (swatch, label), (x, line) in zip(legend, places, strict=True):
        y = bottom + LEGEND_LINE * line
        swatch(drawing, x, y + 3)
        drawing.text(x + SWATCH_WIDTH + 6, y + 14, label, fill=GREY)
    return drawing


def box_swatch(hatched: bool = False, **look) -> Swatch:
    """A small box that looks like what the legend explains."""

    def draw(drawing: Drawing, x: float, y: float) -> None:
        drawing.rect(x, y, SWATCH_WIDTH, SWATCH_HEIGHT, **{"rx": 2, "fill": PAPER, **look})
        if hatched:
            drawing.hatch(x, y, SWATCH_WIDTH, SWATCH_HEIGHT)

    return draw
