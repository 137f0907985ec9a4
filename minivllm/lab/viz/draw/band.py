"""A band of free paper, opened between two rows of a picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from copy import deepcopy

from minivllm.lab.viz.draw.outlines import Box, Shape, absolute, shapes_of

SLACK = 2.0  # pixels by which a row's edges may reach beyond it


def open_band(
    elements: Sequence[ET.Element], at: float, height: float, around: Box
) -> list[ET.Element] | None:
    """A copy of a picture's elements in which all that is below a line has moved down.

    Lines through it become longer, and so does a frame around the place that the band is for.

    Args:
        elements: of the picture.
        at: the line.
        height: of the band.
        around: the place that the band is for.

    Returns:
        The copy; None if anything else is on both sides of the line.
    """
    copies = [deepcopy(element) for element in elements]
    for shape in shapes_of(copies):
        if shape.element.tag == "path":
            fits = _move_path(shape, at, height)
        else:
            fits = _move_box(shape, at, height, around)
        if not fits:
            return None
    return copies


def is_below(top: float, bottom: float, at: float) -> bool | None:
    """Does something begin below a line? None if it is on both sides of it."""
    if bottom <= at + SLACK:
        return False
    return True if top >= at - SLACK else None


def _move_box(shape: Shape, at: float, height: float, around: Box) -> bool:
    (left, top), (right, _), (_, bottom), *_ = shape.lines[0]
    below = is_below(top, bottom, at)
    element = shape.element
    if below:
        element.set("y", f"{float(element.get('y')) + height:g}")
    elif below is None:
        x, y, width, tall = around
        holds = left <= x and x + width <= right and top <= y and y + tall <= bottom
        if element.tag == "text" or not holds:
            return False
        element.set("height", f"{float(element.get('height')) + height:g}")
    return True


def _move_path(shape: Shape, at: float, height: float) -> bool:
    d = ""
    below = iter(is_below(*_extent(line), at) for line in shape.lines)
    solid = shape.is_filled and any(_is_solid(line) for line in shape.lines)
    here: bool | None = False
    for kind, values in absolute(shape.look["d"]):
        if kind == "M":
            here = next(below)
            if here is None and solid:
                return False
        moved = list(values)
        for i in _heights(kind, values):
            if here or (here is None and values[i] + shape.origin[1] > at + SLACK):
                moved[i] += height
        d += kind + " ".join(f"{value:g}" for value in moved)
    shape.element.set("d", d)
    return True


def _heights(kind: str, values: Sequence[float]) -> Sequence[int]:
    """Which numbers of a command are distances from the top."""
    if kind in "HZ":
        return ()
    return (len(values) - 1,) if kind in "VA" else range(1, len(values), 2)


def _extent(line: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return min(y for _, y in line), max(y for _, y in line)


def _is_solid(line: Sequence[tuple[float, float]]) -> bool:
    return len({x for x, _ in line}) > 1 and len({y for _, y in line}) > 1
