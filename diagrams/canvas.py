"""A page for boxes and arrows, as presentation attributes only: what GitHub shows as it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from minivllm.lab.viz.draw.figure import Figure
from minivllm.lab.viz.draw.palette import GREY, INK, LINE, OKABE_ITO
from minivllm.lab.viz.draw.svg import MONO, Drawing

# Okabe-Ito, thinned: fill and edge.
BLUE = ("#d5e8f4", "#0072b2")
GREEN = ("#d3ece4", "#007a59")
ORANGE = ("#fae8c4", "#a86f00")
RED = ("#f8dccb", "#b04a00")
PINK = ("#f4e1eb", "#8f4a72")
PLAIN = ("#ffffff", "#5f5f5f")
UNWRITTEN = ("#efefef", "#8a8a8a")
FULL_BLUE, FULL_ORANGE, FULL_GREEN = OKABE_ITO[:3]  # for dots: the same on a dark page

Point = tuple[float, float]


@dataclass(frozen=True)
class Box:
    """A rectangle on the page, with the four points where arrows end."""

    name: str
    x: float
    y: float
    width: float
    height: float

    @property
    def left(self) -> Point:
        return self.x, self.y + self.height / 2

    @property
    def right(self) -> Point:
        return self.x + self.width, self.y + self.height / 2

    @property
    def top(self) -> Point:
        return self.x + self.width / 2, self.y

    @property
    def bottom(self) -> Point:
        return self.x + self.width / 2, self.y + self.height

    def at(self, side: str, part: float = 0.5) -> Point:
        """A point on a side, ``part`` of the way along it."""
        return {
            "left": (self.x, self.y + part * self.height),
            "right": (self.x + self.width, self.y + part * self.height),
            "top": (self.x + part * self.width, self.y),
            "bottom": (self.x + part * self.width, self.y + self.height),
        }[side]


class Canvas:
    """What is drawn on it is also written down: the text of the picture."""

    def __init__(self, title: str, subtitle: str, alt: str, width: int, height: int):
        self.drawing = Drawing(width, height, title, alt)
        self.alt, self.lines = alt, [title, subtitle, ""]
        self.drawing.text(24, 36, title, font_size=19, font_weight="bold")
        self.drawing.text(24, 57, subtitle, font_size=13, fill=GREY)

    def figure(self) -> Figure:
        return Figure(self.drawing.to_string(), "\n".join(self.lines), self.alt)

    def region(self, x, y, width, height, name: str = "", note: str = "") -> None:
        """A quiet frame around boxes that belong together."""
        self.drawing.rect(x, y, width, height, rx=10, fill="#f7f7f7", stroke=LINE)
        if name:
            self.drawing.text(x + 14, y + 22, name, font_weight="bold", fill=GREY, font_size=13)
            self.drawing.text(x + width - 14, y + 22, note, fill=GREY, text_anchor="end")

    def box(
        self, x, y, width, height, name: str, notes: tuple[str, ...] = (),
        colour: tuple[str, str] = PLAIN, dashed: bool = False, mono: bool = True,
    ) -> Box:  # fmt: skip
        """A named thing, and what it does in a line or two."""
        dash = {"stroke_dasharray": "5 4"} if dashed else {}
        fill, edge = colour
        self.drawing.rect(
            x, y, width, height, rx=6, fill=fill, stroke=edge, stroke_width=1.5, **dash
        )
        first = y + height / 2 + 5 - len(notes) * 8
        family = {"font_family": MONO} if mono else {}
        with self.drawing.group(text_anchor="middle"):
            bold = {"font_weight": "bold", "font_size": 14, **family}
            self.drawing.text(x + width / 2, first, name, width - 8, **bold)
            with self.drawing.group(fill="#3d3d3d", font_size=12):
                for index, note in enumerate(notes, start=1):
                    self.drawing.text(x + width / 2, first + 17 * index, note, width - 8)
        self.lines.append(name + (": " + " ".join(notes) if notes else ""))
        return Box(name, x, y, width, height)

    @contextmanager
    def link(self, href: str) -> Iterator[None]:
        """What is drawn inside leads there, where the picture is a document or part of a page."""
        with self.drawing.group("a", href=href):
            yield

    def dot(self, x: float, y: float, colour: str) -> None:
        self.drawing.path(f"M{x - 5:g} {y:g}a5 5 0 1 0 10 0a5 5 0 1 0-10 0Z", fill=colour)

    def arrow(
        self, points: list[Point], label: str = "", at: Point = (0, 0), anchor: str = "middle",
        dashed: bool = False, colour: str = INK,
    ) -> None:  # fmt: skip
        """A line through points with a head at its end; its label at a place of its own."""
        d = "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
        dash = {"stroke_dasharray": "5 4"} if dashed else {}
        (x1, y1), (x2, y2) = points[-2:]
        self.drawing.arrow(d, (x2, y2), (x2 - x1, y2 - y1), colour, 1.5, **dash)
        if label:
            self.label(label, at, anchor)
            self.lines.append(f"  {label.replace('|', ' ')}")

    def label(self, text: str, at: Point, anchor: str = "middle") -> None:
        """Words beside a line; ``|`` breaks them. White behind them keeps them readable."""
        for index, line in enumerate(text.split("|")):
            y = at[1] + 15 * index
            self.drawing.text(at[0], y, line, halo=True, text_anchor=anchor, font_size=12)

    def words(self, x, y, text: str, **attributes) -> None:
        """A line of free text."""
        self.drawing.text(x, y, text, **{"font_size": 12, "fill": GREY, **attributes})
        self.lines.append(text)
