"""StepAxis: the horizontal axis of engine steps, and the bar charts that stand on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, MAX_WIDTH
from minivllm.lab.viz.draw.palette import GREY, INK, LINE
from minivllm.lab.viz.draw.svg import Drawing
from minivllm.math_utils import cdiv

NAMES = 128  # width of what stands to the left of the steps
TOP = HEADER_HEIGHT + 14  # below the step numbers
SEPARATE = 12  # narrower steps are not told apart: equal neighbours are drawn as one
MAX_BARS = 400  # of a lane; of more steps each bar is the highest of several
LANE_HEIGHT = 46


@dataclass(frozen=True)
class StepAxis:
    """Where each step is. ``cell`` is the width of one."""

    first: int
    last: int

    @property
    def num_steps(self) -> int:
        return self.last - self.first + 1

    @property
    def cell(self) -> float:
        width = min(34.0, (MAX_WIDTH - 2 * MARGIN - NAMES) / self.num_steps)
        return width if width < SEPARATE else float(int(width))

    @property
    def separate(self) -> bool:
        """Is there room for a gap between two steps?"""
        return self.cell >= SEPARATE

    @property
    def right(self) -> float:
        return self.x(self.last + 1)

    def x(self, step: float) -> float:
        """The left edge of a step."""
        return MARGIN + NAMES + (step - self.first) * self.cell

    def fits(self, label: str | int) -> bool:
        """Is a step wide enough for this text of 11 pixels?"""
        return sum(6.4 if c.isdigit() else 9 for c in str(label)) + 2 <= self.cell

    def draw(self, drawing: Drawing, bottom: float) -> None:
        """Step numbers on top, and hairlines below those that are not shown at every step."""
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
                        drawing.path(f"M{x:.2f} {y + 4:g}V{bottom:g}", stroke="#dddddd")

    def draw_lane(
        self, drawing: Drawing, y: float, name: str, limit_name: str, values: Sequence[int],
        limit: int,
    ) -> None:  # fmt: skip
        """Bars under a line for the limit; or up to their peak, if the limit is far above."""
        peak = max(values)
        near = peak * 4 >= limit
        scale = LANE_HEIGHT / max(1, limit if near else peak)
        bottom = y + LANE_HEIGHT
        drawing.text(MARGIN, y + 14, name, font_weight="bold")
        with drawing.group(fill=GREY, font_size=11):
            drawing.text(MARGIN, y + 28, f"{limit_name} {limit}")
            drawing.text(MARGIN, y + 42, f"peak {peak}" if near else f"peak {peak} (full height)")
        if near:
            drawing.path(
                f"M{self.x(self.first):g} {y:g}H{self.right:.2f}",
                stroke=INK, stroke_dasharray="4 3",
            )  # fmt: skip
        drawing.path(f"M{self.x(self.first):g} {bottom:g}H{self.right:.2f}", stroke=LINE)
        d = self.bars(values, bottom, scale)
        drawing.path(d, fill="#c6c6c6")
        if self.fits(peak):
            with drawing.group(font_size=11, text_anchor="middle"):
                for step, value in enumerate(values, self.first):
                    top = bottom - value * scale
                    label_y = top + 12 if value * scale >= 14 else top - 3
                    drawing.text(self.x(step + 0.5), label_y, value)

    def bars(self, values: Sequence[int], bottom: float, scale: float) -> str:
        """The outline of one bar per step, or per group of steps."""
        gap, down = (2, f"V{bottom:g}") if self.separate else (0, "")
        size = cdiv(len(values), MAX_BARS)
        d = [f"M{self.x(self.first):.2f} {bottom:g}"]
        for start in range(0, len(values), size):
            group = values[start : start + size]
            left, right = self.x(self.first + start), self.x(self.first + start + len(group))
            top = bottom - max(group) * scale
            d.append(f"H{left + gap:.2f}V{top:.2f}H{right - gap:.2f}{down}")
        return "".join(d) + f"V{bottom:g}Z"
