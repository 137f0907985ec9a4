"""Layout: margins, header and legend of every SVG figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minivllm.lab.viz.draw.palette import GREY, Owner
from minivllm.lab.viz.draw.svg import SANS_EM, Drawing

MARGIN = 16
MAX_WIDTH = 960
HEADER_HEIGHT = 56  # the margin above included
LEGEND_LINE = 20
SWATCH_WIDTH = 20
SWATCH_HEIGHT = 14

# A legend speaks of all requests, so its swatches have the colour of none.
NOBODY = Owner("", "", solid="#6e6e6e", light="#dadada", edge="#4a4a4a", ink="#ffffff")

Swatch = Callable[[Drawing, float, float], None]


class Legend:
    """Pairs of a swatch and what it means, flowing into lines of a given width."""

    def __init__(self, entries: Sequence[tuple[Swatch, str]], width: float):
        self._placed: list[tuple[float, float, Swatch, str]] = []
        x, y = 0.0, 0.0
        for swatch, label in entries:
            needed = SWATCH_WIDTH + 6 + len(label) * 12 * SANS_EM
            if x > 0 and x + needed > width:
                x, y = 0.0, y + LEGEND_LINE
            self._placed.append((x, y, swatch, label))
            x += needed + 14
        self.height = y + LEGEND_LINE

    def draw(self, drawing: Drawing, x: float, y: float) -> None:
        for dx, dy, swatch, label in self._placed:
            swatch(drawing, x + dx, y + dy + 3)
            drawing.text(x + dx + SWATCH_WIDTH + 6, y + dy + 14, label, fill=GREY)


def draw_header(drawing: Drawing, title: str, facts: str) -> None:
    with drawing.group():  # its own, for a claim to take its place
        drawing.text(MARGIN, MARGIN + 12, title, font_size=15, font_weight="bold")
        drawing.text(MARGIN, MARGIN + 30, facts, font_size=12, fill=GREY)


def header_width(title: str, facts: str) -> float:
    """The narrowest figure whose header fits."""
    return 2 * MARGIN + max(len(title) * 15 * 0.6, len(facts) * 12 * SANS_EM)
