"""Bars: rows of parts side by side, with names at the left and numbers at the right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, Swatch, sheet
from minivllm.lab.viz.draw.palette import GREY, INK, LINE
from minivllm.lab.viz.draw.svg import Drawing, text_width

GAP = 6


@dataclass(frozen=True)
class Part:
    """A piece of a bar.

    Args:
        size: in the unit of the figure.
        look: fill and edge.
        label: inside, where there is room.
        name: by which a mark can point at it; "" if only at the whole bar.
        ink: of the label.
        hatched: whether lines are drawn over it.
    """

    size: float
    look: dict
    label: str = ""
    name: str = ""
    ink: str = INK
    hatched: bool = False


@dataclass(frozen=True)
class Bar:
    """A row: its name, its parts, a note behind them and one below."""

    name: str
    parts: Sequence[Part]
    note: str = ""
    below: str = ""
    height: int = 22
    bold: bool = False
    key: str = ""  # by which a mark can point at it, if not by its name


def draw_bars(
    title: str, facts: str, alt: str, bars: Sequence[Bar], whole: float, length: float,
    legend: Sequence[tuple[Swatch, str]] = (), line: tuple[float, str] | None = None,
) -> Drawing:  # fmt: skip
    """Draw bars on one scale.

    Args:
        title, facts, alt: in words.
        bars: from the first to the last.
        whole: the size that is as long as the figure allows.
        length: that many pixels.
        legend: below.
        line: a size at which a line goes through all bars, and its label.
    """
    left = MARGIN + max(text_width(bar.name, bold=bar.bold) for bar in bars) + 10
    scale = length / whole
    right = left + length + max(text_width(bar.note, bold=bar.bold) for bar in bars) + 8
    heights = [bar.height + GAP + (18 if bar.below else 0) for bar in bars]
    top, bottom = HEADER_HEIGHT, HEADER_HEIGHT + sum(heights)
    drawing = sheet(
        title, facts, alt, right=right, bottom=bottom + (20 if line else 6), legend=legend
    )
    y = float(top)
    for bar, height in zip(bars, heights, strict=True):
        bold = {"font_weight": "bold"} if bar.bold else {}
        middle = y + bar.height / 2 + 4
        x = left
        drawing.text(left - 8, middle, bar.name, text_anchor="end", **bold)
        for part in bar.parts:
            x = _draw_part(drawing, bar, part, x=x, y=y, width=part.size * scale)
        drawing.place((bar.key or bar.name,), left, y, max(x - left, 8), bar.height)
        end = left + length if line else x  # beyond what the line could cross
        drawing.text(end + 8, middle, bar.note, fill=GREY, **bold)
        if bar.below:
            drawing.text(left + 5, y + bar.height + 14, bar.below, fill=GREY, font_size=11)
        y += height
    drawing.path(f"M{left:g} {top - 2:g}V{bottom - 2:g}", stroke=LINE)
    if line is not None:
        x = left + line[0] * scale
        drawing.path(f"M{x:.2f} {top - 4:g}V{bottom:g}", stroke=INK, stroke_dasharray="4 3")
        drawing.text(x, bottom + 12, line[1], text_anchor="middle")
    return drawing


def _draw_part(drawing: Drawing, bar: Bar, part: Part, x: float, y: float, width: float) -> float:
    """Draw one part; where the next one begins."""
    height = bar.height
    if part.name:
        drawing.place((bar.name, part.name), x, y, width, height)
    tooltip = f"{part.name}: {part.size:.3g}" if part.name else None
    drawing.rect(x, y, width, height, tooltip, **part.look)
    if part.hatched:
        drawing.hatch(x, y, width, height)
    if part.label and text_width(part.label, 11) + 4 <= width:
        drawing.text(
            x + width / 2,
            y + height / 2 + 4,
            part.label,
            halo=part.hatched,
            fill=part.ink,
            font_size=11,
            text_anchor="middle",
        )
    return x + width
