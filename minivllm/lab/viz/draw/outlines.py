"""Outlines: the elements of a picture with their places, and the points of its paths."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from minivllm.lab.viz.draw.svg import MONO, Point, text_width

Box = tuple[float, float, float, float]  # left, top, width, height
Command = tuple[str, list[float]]

_NUMBERS = {"M": 2, "L": 2, "H": 1, "V": 1, "Q": 4, "C": 6, "A": 7, "Z": 0}
_PIECES = 12  # straight ones of a curve


@dataclass(frozen=True)
class Shape:
    """A rectangle, a text or a path of a picture.

    Args:
        element: itself.
        look: its attributes, with those that its groups give it.
        origin: the place on the paper from which it counts.
    """

    element: ET.Element
    look: dict[str, str]
    origin: Point

    @property
    def is_filled(self) -> bool:
        return self.look["fill"] != "none"

    @cached_property
    def lines(self) -> list[list[Point]]:
        """The outline, on the paper: several for a path of several pieces."""
        x, y = self.origin
        if self.element.tag == "path":
            found = polylines(absolute(self.look["d"]))
            return [[(px + x, py + y) for px, py in line] for line in found]
        left, top, width, height = self._text_box() if self.element.tag == "text" else self._rect()
        right = left + width
        bottom = top + height
        return [[(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]]

    def _rect(self) -> Box:
        x, y, width, height = (float(self.look[k]) for k in ("x", "y", "width", "height"))
        return x + self.origin[0], y + self.origin[1], width, height

    def _text_box(self) -> Box:
        """The box of a line with the widest of the usual fonts."""
        size = float(self.look["font-size"])
        bold = self.look.get("font-weight") == "bold"
        mono = self.look.get("font-family") == MONO
        width = text_width(self.element.text or "", size, bold, mono)
        width = float(self.look.get("textLength", width))
        x = float(self.look["x"]) + self.origin[0]
        x -= {"middle": width / 2, "end": width}.get(self.look.get("text-anchor", ""), 0)
        return x, float(self.look["y"]) + self.origin[1] - 0.8 * size, width, size


def shapes_of(
    elements: Iterable[ET.Element], look: dict[str, str] | None = None, origin: Point = (0, 0)
) -> Iterator[Shape]:
    """All that is drawn by some elements; groups may be moved, and not turned or made larger."""
    for element in elements:
        own = (look or {"font-size": "12", "fill": "black"}) | element.attrib
        moved = re.findall(r"-?[\d.]+", own.pop("transform", "")) or ("0", "0")
        if element.tag in ("g", "a"):
            x, y = (a + float(b) for a, b in zip(origin, moved, strict=True))
            yield from shapes_of(element, own, (x, y))
        elif element.tag in ("rect", "text", "path"):
            yield Shape(element, own, origin)


def absolute(d: str) -> Iterator[Command]:
    """The commands of a path in capitals: their numbers count from its origin."""
    here = (0.0, 0.0)
    start = here
    for letter, rest in re.findall(r"([a-zA-Z])([^a-zA-Z]*)", d):
        kind = letter.upper()
        numbers = [float(n) for n in re.findall(r"-?\d*\.?\d+", rest)]
        size = _NUMBERS[kind]
        for at in range(0, max(1, len(numbers)), max(1, size)):
            values = numbers[at : at + size]
            if letter.islower():
                values = _from_here(kind, values, here)
            kind = "L" if kind == "M" and at else kind  # further pairs of a move are lines
            yield kind, values
            here = start if kind == "Z" else _end(kind, values, here)
            start = here if kind == "M" else start


def polylines(commands: Iterable[Command]) -> Iterator[list[Point]]:
    """The lines of a path; a curve is a few straight ones, an arc is taken for half a circle."""
    line: list[Point] = []
    for kind, values in commands:
        if kind == "M" and line:
            yield line
            line = []
        if kind == "Z":
            line.append(line[0])
        elif kind in "QC":
            points = [line[-1], *zip(values[::2], values[1::2], strict=True)]
            line += [_on_curve(points, i / _PIECES) for i in range(1, _PIECES + 1)]
        elif kind == "A":
            line += _half_circle(line[-1], _end(kind, values, line[-1]), bool(values[4]))
        else:
            line.append(_end(kind, values, line[-1] if line else (0.0, 0.0)))
    if line:
        yield line


def _from_here(kind: str, values: list[float], here: Point) -> list[float]:
    """Numbers of a command in small letters, as its capital has them."""
    if kind in "HV":
        return [values[0] + here["HV".index(kind)]]
    fixed = len(values) - 2 if kind == "A" else 0  # radii and flags of an arc stay
    return [v if i < fixed else v + here[(i - fixed) % 2] for i, v in enumerate(values)]


def _end(kind: str, values: list[float], here: Point) -> Point:
    if kind == "H":
        return values[0], here[1]
    if kind == "V":
        return here[0], values[0]
    return values[-2], values[-1]


def _on_curve(points: Sequence[Point], part: float) -> Point:
    while len(points) > 1:
        pairs = pairwise(points)
        points = [(a[0] + (b[0] - a[0]) * part, a[1] + (b[1] - a[1]) * part) for a, b in pairs]
    return points[0]


def _half_circle(start: Point, end: Point, clockwise: bool) -> list[Point]:
    centre = complex(start[0] + end[0], start[1] + end[1]) / 2
    out = complex(*start) - centre
    turn = 1j if clockwise else -1j
    points = (centre + out * turn ** (2 * i / _PIECES) for i in range(1, _PIECES + 1))
    return [(point.real, point.imag) for point in points]
