"""Number lines: some numbers, and below them the codes that each way to round has there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor, log10

from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, sheet
from minivllm.lab.viz.draw.palette import GREY, INK, LINE, OKABE_ITO
from minivllm.lab.viz.draw.svg import Drawing
from minivllm.lab.viz.draw.wording import as_drawn, count, pad
from minivllm.utils.validation import check, is_number

# Sizes in pixels.
NAMES = 134
LENGTH = 420
ERRORS = 96
ROW = 38
TICK = 14
DOT = 7
LEFT = MARGIN + NAMES


def number_line(
    values: Sequence[float], grids: Mapping[str, Sequence[float]], title: str | None = None,
    mark: Sequence[Mark] = (), what: str = "weight",
) -> Figure:  # fmt: skip
    """Draw numbers on a line, and on lines below it what each grid rounds them to.

    Args:
        values: the numbers, which the lines reach over; three digits of them count.
        grids: by name, all numbers that this way to round has; those beyond the line's ends are not
            drawn.
        title, mark: what it shows, and lines to point at: ("weights", or a grid's name, text).
        what: what one of the numbers is; the first line's name is its plural.

    Raises:
        ValueError: without numbers or grids, for an empty grid, or for what is no number.
    """
    check(len(values) > 1 and min(values) < max(values), "values", values, "two unlike numbers")
    check(len(grids) > 0, "grids", grids, "at least one")
    for name, grid in grids.items():
        check(len(grid) > 0 and all(map(is_number, grid)), f"grids[{name!r}]", grid, "numbers")
    digits = 3 - floor(log10(max(values) - min(values)))  # a thousandth of the lines, or less
    values = [as_drawn(value, digits) for value in values]
    nearest = {
        name: [min(grid, key=lambda code, v=value: abs(code - v)) for value in values]
        for name, grid in grids.items()
    }
    errors = {
        name: sum(abs(a - b) for a, b in zip(values, rounded, strict=True)) / len(values)
        for name, rounded in nearest.items()
    }
    ends = _ends(values, nearest)
    inside = {name: [c for c in grid if ends[0] <= c <= ends[1]] for name, grid in grids.items()}
    told = {
        name: f"{count(len(inside[name]), 'code')} here, mean error {errors[name]:.4f}"
        for name in grids
    }
    head = "Number lines"
    facts = f"{count(len(values), what)} from {min(values):.3f} to {max(values):.3f}"
    alt = f"{head}: {facts}. {'; '.join(f'{name}: {words}' for name, words in told.items())}."
    bottom = HEADER_HEIGHT + ROW * (1 + len(grids)) + 18
    drawing = sheet(head, facts, alt, MARGIN + NAMES + LENGTH + ERRORS, bottom)
    _draw_line(drawing, 0, f"{what}s", ticks=[], dots=values, ends=ends)
    for index, name in enumerate(grids, 1):
        y = _draw_line(drawing, index, name, ticks=inside[name], dots=nearest[name], ends=ends)
        drawing.text(LEFT + LENGTH + 12, y + 4, f"error {errors[name]:.4f}", fill=GREY)
    width = max(map(len, grids)) + 2
    lines = [head, facts, *(f"{pad(name, width)}{words}" for name, words in told.items())]
    return finish(drawing, "\n".join(lines), title, mark)


def _ends(values: Sequence[float], nearest: Mapping[str, Sequence[float]]) -> tuple[float, float]:
    """Ends of the lines: all numbers, and what they are rounded to."""
    seen = [*values, *(code for rounded in nearest.values() for code in rounded)]
    return min(seen), max(seen)


def _draw_line(
    drawing: Drawing, index: int, name: str, ticks: Sequence[float], dots: Sequence[float],
    ends: tuple[float, float],
) -> float:  # fmt: skip
    """Draw a line with its ticks and dots; returns its height on the paper."""
    y = HEADER_HEIGHT + 28 + ROW * index
    scale = LENGTH / (ends[1] - ends[0])
    drawing.text(MARGIN, y + 4, name, NAMES - 8, font_weight="bold")
    drawing.path(f"M{LEFT:g} {y:g}H{LEFT + LENGTH:g}", stroke=LINE)
    for tick in ticks:
        x = LEFT + (tick - ends[0]) * scale
        drawing.path(f"M{x:.1f} {y - TICK:g}V{y + TICK:g}", stroke=GREY, stroke_width=0.8)
    colour = OKABE_ITO[(index - 1) % len(OKABE_ITO)] if index else INK
    for dot in sorted(set(dots)):
        x = round(LEFT + (dot - ends[0]) * scale - DOT / 2, 1)
        drawing.rect(x, y - DOT / 2, DOT, DOT, rx=DOT / 2, fill=colour)
    drawing.place((name,), LEFT - 6, y - TICK - 1, LENGTH + 12, 2 * TICK + 2)
    return y
