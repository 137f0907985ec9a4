"""Ink: where a picture has something on its paper, so that words can go where it has nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from minivllm.lab.viz.draw.outlines import Shape
from minivllm.lab.viz.draw.palette import HAIRLINE
from minivllm.lab.viz.draw.svg import Point


class Ink:
    """The pixels of a picture that are not free: for each line of them a row of bits.

    Words have paper around their letters, so they may lie on hairlines.

    Args:
        height: of the paper.
        shapes: what is on it.
    """

    def __init__(self, height: float, shapes: Iterable[Shape]):
        self.rows = [0] * (int(height) + 1)
        for shape in shapes:
            if shape.look.get("stroke") == HAIRLINE:
                continue
            for line in shape.lines:
                if shape.is_filled:
                    self._fill(line)
                if "stroke" in shape.look:
                    self._draw(line)

    def is_free(self, x: float, y: float, width: float, height: float) -> bool:
        """Is nothing in this box? Beyond the paper there is nothing."""
        bits = _bits(x, x + width)
        rows = self.rows[max(0, int(y)) : max(0, int(y + height) + 1)]
        return not any(row & bits for row in rows)

    def cover(self, x: float, y: float, width: float, height: float) -> None:
        """Take all of a box."""
        bits = _bits(x, x + width)
        for row in range(max(0, int(y)), min(len(self.rows), int(y + height) + 1)):
            self.rows[row] |= bits

    def _fill(self, line: Sequence[Point]) -> None:
        """Take the inside of a closed line."""
        edges = [(a, b) for a, b in pairwise([*line, line[0]]) if a[1] != b[1]]
        for row in range(int(min(y for _, y in line)), int(max(y for _, y in line)) + 1):
            y = row + 0.5
            crossed = sorted(
                a[0] + (y - a[1]) / (b[1] - a[1]) * (b[0] - a[0])
                for a, b in edges
                if min(a[1], b[1]) <= y < max(a[1], b[1])
            )
            for left, right in zip(crossed[::2], crossed[1::2], strict=True):
                self.cover(left, row, right - left, 0)

    def _draw(self, line: Sequence[Point]) -> None:
        for (x, y), (x2, y2) in pairwise(line):
            if x == x2 or y == y2:
                self.cover(min(x, x2), min(y, y2), abs(x2 - x), abs(y2 - y))
                continue
            steps = int(max(abs(x2 - x), abs(y2 - y))) + 1
            for i in range(steps + 1):
                self.cover(x + (x2 - x) * i / steps, y + (y2 - y) * i / steps, 0, 0)


def _bits(left: float, right: float) -> int:
    first = max(0, int(left))
    return (1 << max(first, int(right) + 1)) - (1 << first)
