"""StepAxis: the horizontal axis of engine steps, and the bar charts that stand on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from minivllm.lab.translation import translated
from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, MAX_WIDTH
from minivllm.lab.viz.draw.palette import GREY, HAIRLINE, INK, LINE, Owner
from minivllm.lab.viz.draw.svg import Drawing
from minivllm.lab.viz.draw.wording import shorten
from minivllm.utils.math_utils import cdiv

NAMES = 128  # width of what is to the left of the steps
TOP = HEADER_HEIGHT + 14  # below the step numbers
SEPARATE = 12  # narrower steps are not told apart: equal neighbours are drawn as one
MAX_BARS = 400  # of a lane; of more steps each bar is the highest of several
LANE_HEIGHT = 46
ROOM = MAX_WIDTH - 2 * MARGIN - NAMES  # for all steps


MAX_SEPARATE = 60  # steps of different widths that are told apart


@dataclass(frozen=True)
class StepAxis:
    """Horizontal place of each step.

    Args:
        first, last: the steps.
        milliseconds: of each; None if all are equally wide.
        scale: pixels per millisecond; None fills the width.
    """

    first: int
    last: int
    milliseconds: Sequence[float] | None = None
    scale: float | None = None

    @cached_property
    def _edges(self) -> list[float]:
        """The left edge of each step and the end, in pixels from the first."""
        ends = list(accumulate(self.milliseconds, initial=0.0))
        scale = self.scale or ROOM / ends[-1]
        return [end * scale for end in ends]

    @property
    def num_steps(self) -> int:
        return self.last - self.first + 1

    @property
    def cell(self) -> float:
        """The width of a step, or of the narrowest."""
        if self.milliseconds is not None:
            return min(b - a for a, b in pairwise(self._edges))
        width = min(34.0, ROOM / self.num_steps)
        return width if width < SEPARATE else float(int(width))

    @property
    def separate(self) -> bool:
        """Is there room for a gap between two steps?"""
        if self.milliseconds is not None:
            return self.num_steps <= MAX_SEPARATE
        return self.cell >= SEPARATE

    @property
    def right(self) -> float:
        return self.x(self.last + 1)

    def x(self, step: float) -> float:
        """The left edge of a step, or a place in it."""
        if self.milliseconds is None:
            return MARGIN + NAMES + (step - self.first) * self.cell
        index = min(int(step) - self.first, self.num_steps - 1)
        left, right = self._edges[index : index + 2]
        return MARGIN + NAMES + left + (step - self.first - index) * (right - left)

    def width(self, step: int) -> float:
        """Width of a step."""
        return self.cell if self.milliseconds is None else self.x(step + 1) - self.x(step)

    def fits(self, label: str | int, step: int) -> bool:
        """Is this step wide enough for this text of 11 pixels?"""
        return sum(6.4 if c.isdigit() else 9 for c in str(label)) + 2 <= self.width(step)

    def draw(self, drawing: Drawing, bottom: float) -> None:
        """Step numbers on top, and hairlines below those that are not shown at every step."""
        if self.milliseconds is not None:
            self._draw_milliseconds(drawing, bottom)
            return
        usual = (1, 5, 10, 20, 50, 100, 200, 500, *(1000 * 2**i for i in range(20)))
        every = next(n for n in usual if n * self.cell >= 26)
        y = HEADER_HEIGHT + 8
        with drawing.group(fill=GREY, font_size=11, text_anchor="middle"):
            drawing.text(MARGIN + NAMES - 22, y, "step")
            for step in range(self.first, self.last + 1):
                if step % every == 0:
                    x = self.x(step + 0.5)
                    drawing.text(x, y, step)
                    if every > 1:
                        drawing.path(f"M{x:.2f} {y + 4:g}V{bottom:g}", stroke=HAIRLINE)

    def _draw_milliseconds(self, drawing: Drawing, bottom: float) -> None:
        """Round times on top, and hairlines below them."""
        total = sum(self.milliseconds)
        pixels = self._edges[-1]
        usual = [n * 10.0**power for power in range(-3, 7) for n in (1, 2, 5)]
        every = next(n for n in usual if n * pixels / total >= 60)
        y = HEADER_HEIGHT + 8
        with drawing.group(fill=GREY, font_size=11, text_anchor="middle"):
            drawing.text(MARGIN + NAMES - 22, y, "ms")
            for tick in range(int(total / every) + 1):
                x = MARGIN + NAMES + tick * every * pixels / total
                drawing.text(x, y, f"{tick * every:g}")
                drawing.path(f"M{x:.2f} {y + 4:g}V{bottom:g}", stroke=HAIRLINE)

    def draw_lane(
        self, drawing: Drawing, y: float, name: str, limit_name: str, values: Sequence[int],
        limit: int, top: int | None = None,
    ) -> None:  # fmt: skip
        """Bars under a line for the limit; or up to their peak, if the limit is far above.

        ``top`` is the value of the full height, if several lanes are to share one.
        """
        peak = max(values)
        top = lane_top(values, limit) if top is None else top
        scale = LANE_HEIGHT / max(1, top)
        bottom = y + LANE_HEIGHT
        full_height = top
        drawing.text(MARGIN, y + 14, name, font_weight="bold")
        with drawing.group(fill=GREY, font_size=11):
            drawing.text(MARGIN, y + 28, f"{translated(limit_name)} {limit}")
            full = peak == top < limit
            drawing.text(MARGIN, y + 42, f"peak {peak} (full height)" if full else f"peak {peak}")
        if limit <= top:
            drawing.path(
                f"M{self.x(self.first):g} {bottom - limit * scale:g}H{self.right:.2f}",
                stroke=INK, stroke_dasharray="4 3",
            )  # fmt: skip
        drawing.path(f"M{self.x(self.first):g} {bottom:g}H{self.right:.2f}", stroke=LINE)
        d = self.bars(values, bottom, scale)
        drawing.path(d, fill="#c6c6c6")
        for step in range(self.first, self.first + len(values)):
            drawing.place((name, step), self.x(step), y, self.width(step), LANE_HEIGHT)
        if self.milliseconds is not None or self.fits(peak, self.first):
            with drawing.group(font_size=11, text_anchor="middle"):
                for step, value in enumerate(values, self.first):
                    if not self.fits(value, step):
                        continue
                    top = bottom - value * scale
                    line = bottom - limit * scale
                    label_y = top + 12 if value * scale >= 14 else top - 3
                    struck = limit <= full_height and label_y - 11 < line < label_y + 4
                    drawing.text(self.x(step + 0.5), line - 4 if struck else label_y, value)

    def bars(self, values: Sequence[int], bottom: float, scale: float) -> str:
        """The outline of one bar per step, or per group of steps."""
        equal = self.milliseconds is None
        gap, down = (2 if equal else 0.5, f"V{bottom:g}") if self.separate else (0, "")
        size = cdiv(len(values), MAX_BARS)
        d = [f"M{self.x(self.first):.2f} {bottom:g}"]
        for start in range(0, len(values), size):
            group = values[start : start + size]
            left = self.x(self.first + start)
            right = self.x(self.first + start + len(group))
            top = bottom - max(group) * scale
            d.append(f"H{left + gap:.2f}V{top:.2f}H{right - gap:.2f}{down}")
        return "".join(d) + f"V{bottom:g}Z"


def lane_top(values: Sequence[int], limit: int) -> int:
    """Value at the full height of a lane: the limit, unless all values are far below it."""
    peak = max(values)
    return limit if peak * 4 >= limit else peak


def draw_name(drawing: Drawing, owner: Owner, baseline: float, size: int) -> None:
    """A row's letter and id, or one of them where that says it all."""
    name, rest = owner.label
    bold = {"font_weight": "bold", "font_size": size, "text_anchor": "end"}
    drawing.text(MARGIN + 26, baseline, name, 26, fill=owner.edge, **bold)
    if rest:
        rest = shorten(rest, 13)
        room = NAMES - 40
        drawing.text(MARGIN + 34, baseline, rest, room, fill=GREY, font_size=11)
