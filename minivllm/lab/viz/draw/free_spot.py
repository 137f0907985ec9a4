"""The spot beside a point of a plot where words cover the least of what is drawn."""

from __future__ import annotations

from itertools import pairwise, product
from typing import TYPE_CHECKING

from minivllm.lab.viz.draw.svg import Point, text_width

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARK_SIZE = 9  # of the words, in points
LINE = 12  # height of one, in points
OUT = (22, 44)  # from the point to the words: across,
UP = (24, -24, 0, 44, -44, 66, -66)  # and up or down; the first of equally free ones is taken
PIECES = 24  # of a curve, between two of its points

Box = tuple[float, float, float, float]  # left, low, right, high


def free_spot(axes: Axes, point: Point, words: str) -> Point:
    """Points by which words go to the right of a place and up, or to the left and down.

    Args:
        axes: of which all but the words has been laid out.
        point: the place, in data.
        words: in lines.
    """
    lines = words.splitlines()
    width = max(text_width(line, MARK_SIZE, bold=True) for line in lines)
    height = LINE * len(lines)
    here = axes.transData.transform(point)
    paper = _from(axes.get_window_extent(), here, axes)
    boxes = [_from(patch.get_window_extent(), here, axes) for patch in axes.patches]
    if legend := axes.get_legend():
        boxes.append(_from(legend.get_window_extent(), here, axes))
    points = list(_points_of_curves(axes, here))
    middle = (paper[0] + paper[2]) / 2, (paper[1] + paper[3]) / 2
    ways = (1, -1) if middle[0] > 0 else (-1, 1)  # to the side where there is more room first
    ups = UP if middle[1] > 0 else [-up for up in UP]

    def cost(spot: tuple[int, int, float]) -> tuple[bool, int]:
        way, out, up = spot
        left = out if way > 0 else -out - width
        box = (left, up - height / 2, left + width, up + height / 2)
        is_inside = box[0] >= paper[0] and box[2] <= paper[2]
        is_inside = is_inside and box[1] >= paper[1] and box[3] <= paper[3]
        hits = sum(box[0] - 2 < x < box[2] + 2 and box[1] - 2 < y < box[3] + 2 for x, y in points)
        return not is_inside, hits + PIECES * sum(_meet(box, other) for other in boxes)

    way, out, up = min(product(ways, OUT, ups), key=cost)
    return way * out, up


def _from(extent, here: Point, axes: Axes) -> Box:
    """A box of pixels, in points from a place."""
    scale = 72 / axes.figure.dpi
    left, low, right, high = extent.extents
    x, y = here
    return (left - x) * scale, (low - y) * scale, (right - x) * scale, (high - y) * scale


def _points_of_curves(axes: Axes, here: Point):
    """Yield points of all curves, in points from a place; they are near to one another."""
    scale = 72 / axes.figure.dpi
    for line in axes.lines:
        pixels = line.get_transform().transform(line.get_xydata())
        for (x, y), (x2, y2) in pairwise(pixels):
            for i in range(PIECES):
                part = i / PIECES
                across = x + (x2 - x) * part - here[0]
                yield across * scale, (y + (y2 - y) * part - here[1]) * scale


def _meet(one: Box, other: Box) -> bool:
    across = one[0] < other[2] and other[0] < one[2]
    return across and one[1] < other[3] and other[1] < one[3]
