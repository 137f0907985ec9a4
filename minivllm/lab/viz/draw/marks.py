"""Marks: a frame around a place of a figure, and words beside it on paper that is free."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from minivllm.lab.viz.draw.band import is_below, open_band
from minivllm.lab.viz.draw.ink import Ink
from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, MAX_WIDTH
from minivllm.lab.viz.draw.outlines import Box, shapes_of
from minivllm.lab.viz.draw.palette import ACCENT
from minivllm.lab.viz.draw.svg import Drawing, text_width
from minivllm.lab.viz.draw.wording import num_columns, wrap

FRAME = 2  # pixels between a place and its frame
GAPS = (4, 8, 12, 16, 20, 25, 30)  # between a frame and its words; the last is the longest leader
NO_LEADER = 8  # words nearer than this need no line to their frame
LINE_HEIGHT = 15
LETTERS = 13  # height of a line without what is between it and the next
BANDS = (8, 14, 24)  # heights; the last is enough for a line of words
CROSSING = 100.0  # cost of a leader that goes through something

EDGE = {"fill": "none", "stroke": ACCENT}


@dataclass(frozen=True)
class Callout:
    """A mark, and where its words are.

    Args:
        name: of the place that is marked.
        box: the place.
        words: what is said of it.
    """

    name: str
    box: Box
    words: str


@dataclass(frozen=True)
class Spot:
    """A place for the words of a mark, in one or several lines.

    Args:
        lines: the words.
        left, top: of the first line.
        leader: path from the frame to the words; "" if they are near enough.
        cost: the lower, the better.
    """

    lines: Sequence[str]
    left: float
    top: float
    leader: str = ""
    cost: float = 0.0

    @property
    def width(self) -> float:
        return max(text_width(line, bold=True) for line in self.lines)

    @property
    def height(self) -> float:
        return LINE_HEIGHT * (len(self.lines) - 1) + LETTERS


@dataclass
class Marked:
    """A picture's elements, and its marks with their spots; None where no paper near is free."""

    elements: list[ET.Element]
    callouts: list[Callout]
    spots: list[Spot | None]
    width: float
    height: float


def frame(box: Box) -> Box:
    x, y, width, height = box
    return x - FRAME, y - FRAME, width + 2 * FRAME, height + 2 * FRAME


def place_marks(
    elements: list[ET.Element], callouts: list[Callout], width: float, height: float
) -> Marked:
    """Find paper for the words of marks.

    Where none near is free a band is opened below the place, or above it: everything further down
    moves.

    Args:
        elements: of the picture, all but its header.
        callouts: the marks, with their places on the paper.
        width, height: of the paper. Words may make it wider, up to the limit of all figures.
    """
    for wanted in range(len(callouts)):
        *_, spot = _spots_of(_Paper(elements, callouts, width, height), callouts[: wanted + 1])
        if not _is_good(spot):
            opened = _with_band(elements, callouts, wanted, width, height)
            elements, callouts, height = opened or (elements, callouts, height)
    paper = _Paper(elements, callouts, width, height)
    spots = _spots_of(paper, callouts)
    return Marked(elements, callouts, spots, paper.width, paper.height)


def _spots_of(paper: _Paper, callouts: Sequence[Callout]) -> list[Spot | None]:
    """The best spot of each, one after the other."""
    spots = []
    for callout in callouts:
        spot = paper.best_spot(callout)
        if spot is not None:
            paper.take(spot)
        spots.append(spot)
    return spots


def _is_good(spot: Spot | None) -> bool:
    return spot is not None and spot.cost < CROSSING


def _with_band(
    elements: list[ET.Element], callouts: list[Callout], wanted: int, width: float, height: float
) -> tuple[list[ET.Element], list[Callout], float] | None:
    """The same picture with the lowest band of free paper that has room for the words of a mark."""
    box = callouts[wanted].box
    _, y, _, tall = box
    paper = _Paper(elements, callouts, width, height)
    num_far = _spots_of(paper, callouts[:wanted]).count(None)
    for size in BANDS:
        for at in (y + tall, y):
            moved = open_band(elements, at, size, box)
            if moved is None:
                continue
            lowered = [_lowered(callout, at, size) for callout in callouts]
            lowered.insert(0, lowered.pop(wanted))  # it has the first choice, as the band is for it
            paper = _Paper(moved, lowered, width, height + size)
            spot, *before = _spots_of(paper, lowered[: wanted + 1])
            if _is_good(spot) and before.count(None) <= num_far:
                return moved, lowered, height + size
    return None


def _lowered(callout: Callout, at: float, size: float) -> Callout:
    x, y, width, height = callout.box
    below = is_below(y, y + height, at)
    if below is None:  # a place of several rows
        return replace(callout, box=(x, y, width, height + size))
    return replace(callout, box=(x, y + size * below, width, height))


class _Paper:
    """A picture's paper, of which marks take their spots one after the other."""

    def __init__(
        self, elements: list[ET.Element], callouts: list[Callout], width: float, height: float
    ):
        self.ink = Ink(height, shapes_of(elements))
        self.ink.cover(0, 0, MAX_WIDTH, HEADER_HEIGHT - 6)
        for callout in callouts:
            self.ink.cover(*frame(callout.box))
        self.width = width
        self.height = height

    def best_spot(self, callout: Callout) -> Spot | None:
        spots = (
            spot
            for lines in _line_breaks(callout.words)
            for spot in self._spots(frame(callout.box), lines)
            if self._is_free(spot)
        )
        return min(spots, key=lambda spot: spot.cost, default=None)

    def take(self, spot: Spot) -> None:
        self.ink.cover(spot.left - 4, spot.top - 2, spot.width + 8, spot.height + 4)
        self.width = max(self.width, spot.left + spot.width + MARGIN)
        self.height = max(self.height, spot.top + spot.height + 6)

    def _is_free(self, spot: Spot) -> bool:
        inside = MARGIN / 2 <= spot.left <= max(self.width, MAX_WIDTH) - MARGIN / 2 - spot.width
        return inside and self.ink.is_free(spot.left - 3, spot.top, spot.width + 6, spot.height)

    def _spots(self, framed: Box, lines: list[str]) -> Iterator[Spot]:
        """Right of a frame, below it, above it and left of it."""
        x, y, width, height = framed
        right = x + width
        bottom = y + height
        size = Spot(lines, 0, 0)
        centred = y + (height - size.height) / 2
        tops = {centred}
        if height > 2 * size.height:
            tops |= {y, bottom - size.height}
        inside = max(self.width, MARGIN + x + width) - MARGIN - size.width
        middle = x + width / 2
        aligned = x, middle - size.width / 2, right - size.width
        lefts = [*aligned, middle, middle - size.width, min(x, max(MARGIN, inside))]
        for gap in GAPS:
            for top in sorted(tops):
                cost = gap + (top != centred)
                level = min(max(y + height / 2, top + 6), top + size.height - 6)
                level = min(max(level, y), bottom)
                yield self._spot(
                    lines, right + gap, top, start=(right, level), way=(gap, 0), cost=cost
                )
                beside = x - gap - size.width
                yield self._spot(lines, beside, top, start=(x, level), way=(-gap, 0), cost=cost + 6)
            for i, left in enumerate(lefts):
                cost = gap + 2 + i / 10
                across = min(max(middle, left + 4), left + size.width - 4)
                across = min(max(across, x), right)
                above = y - gap - size.height
                yield self._spot(
                    lines, left, bottom + gap, start=(across, bottom), way=(0, gap), cost=cost
                )
                yield self._spot(
                    lines, left, above, start=(across, y), way=(0, -gap), cost=cost + 2
                )

    def _spot(
        self, lines: list[str], left: float, top: float, start: tuple[float, float],
        way: tuple[float, float], cost: float,
    ) -> Spot:  # fmt: skip
        """A spot whose leader begins at a point of the frame and goes some way from there."""
        spot = Spot(lines, left, top)
        x, y = start
        dx, dy = way
        leader = ""
        if abs(dx + dy) > NO_LEADER:
            leader = f"M{x:g} {y:g}l{dx:g} {dy:g}"
            left_end = min(x, x + dx) + 3 * (dx > 0)  # beyond the frame's own edge
            upper_end = min(y, y + dy) + 3 * (dy > 0)
            across = max(0, abs(dx) - 3)
            down = max(0, abs(dy) - 3)
            if not self.ink.is_free(left_end, upper_end, across, down):
                cost += CROSSING
        cost += 3 * (len(lines) - 1)
        cost += max(0, left + spot.width + MARGIN - self.width) / 8
        cost += max(0, top + spot.height + 6 - self.height)
        return replace(spot, leader=leader, cost=cost)


def _line_breaks(words: str) -> list[list[str]]:
    """The words in one line, and in two, three and four if they are long enough for that."""
    found = [[words]]
    for num_lines in range(2, min(4, num_columns(words) // 8) + 1):
        widths = range(max(8, num_columns(words) // num_lines), num_columns(words) + 1)
        lines = next(lines for n in widths if len(lines := wrap(words, n)) <= num_lines)
        if len(lines) > len(found[-1]):
            found.append(lines)
    return found


def draw_marks(drawing: Drawing, marked: Marked) -> None:
    """Draw frames, leaders and words of the marks that have found a spot."""
    for callout, spot in zip(marked.callouts, marked.spots, strict=True):
        if spot is None:
            continue
        with drawing.group(data_mark=callout.name):
            draw_frame(drawing, callout)
            if spot.leader:
                drawing.path(spot.leader, stroke_width=1.2, **EDGE)
            for i, line in enumerate(spot.lines):
                baseline = spot.top + LINE_HEIGHT * i + LETTERS - 3
                drawing.text(spot.left, baseline, line, halo=True, fill=ACCENT, font_weight="bold")


def draw_frame(drawing: Drawing, callout: Callout, down: float = 0.0) -> None:
    """Draw a frame around the place of a mark, so far down from where the place is known to be."""
    x, y, width, height = frame(callout.box)
    drawing.rect(x, y + down, width, height, rx=3, stroke_width=2, **EDGE)
