"""Curves by matplotlib, which is imported only when something is drawn: paper, axes, PNG."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING

from minivllm.lab.translation import translated
from minivllm.lab.viz.draw.claim import Mark, told
from minivllm.lab.viz.draw.figure import Plot
from minivllm.lab.viz.draw.free_spot import MARK_SIZE, free_spot
from minivllm.lab.viz.draw.palette import ACCENT, GREY, INK, LINE
from minivllm.lab.viz.draw.wording import number, wrap
from minivllm.utils.validation import check

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

LINES = ("-", "--", "-.", ":")
MARKERS = "osD^vP*X"


def new_figure(width: float, height: float) -> Figure:
    """White paper; no window, and no global state of matplotlib is touched."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=100, facecolor="white", layout="constrained")


def to_png(figure: Figure) -> bytes:
    """The same bytes for the same figure: without the version in them.

    64 colours are plenty for lines and letters, and take a third of the bytes.
    """
    from PIL import Image  # matplotlib needs it, too

    drawn = BytesIO()
    small = BytesIO()
    figure.savefig(drawn, format="png")
    Image.open(drawn).convert("RGB").quantize(64).save(small, format="png", optimize=True)
    return small.getvalue()


def style_axes(axes: Axes) -> None:
    """Axes that step back behind what they show."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(LINE)
    axes.tick_params(colors=GREY, labelsize=9)
    axes.grid(color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)


def label_decades(axis: Axis) -> None:
    """Numbers at 1, 2 and 5 of each decade of a logarithmic axis, in place of powers."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(lambda value, _: number(value))
    axis.set_minor_locator(NullLocator())


@contextmanager
def _boxes_for_characters() -> Iterator[None]:
    """Boxes stand for characters whose font is missing, and nothing warns of it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


@_boxes_for_characters()
def plot(
    figure: Figure, alt: str, text: str = "", title: str | None = None, mark: Sequence[Mark] = (),
    panels: Mapping[str, Axes] | None = None,
) -> Plot:  # fmt: skip
    """Make a PNG with an alternative text of a figure of matplotlib.

    Args:
        figure: what is drawn.
        alt: what it shows, in a sentence with numbers.
        text: the same for a terminal; the alternative text if there is none.
        title: what it shows, in one sentence: the first line.
        mark: places to point at, as (x, y, text); in front of them the panel's name if there are
            several.
        panels: axes by name; None are all, by number, or the only one without a name.

    Raises:
        ValueError: if a mark is not inside its axes.
    """
    named = panels or dict(enumerate(figure.axes))
    _set_fonts(figure)
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        if type(axis.get_major_formatter()).__name__ == "LogFormatterSciNotation":
            label_decades(axis)  # 600, where matplotlib writes 6 x 10^2
    if title:
        figure.set_layout_engine("constrained")  # which makes room for it
        width = int(figure.get_figwidth() * 72 / (12 * 0.6))
        figure.suptitle("\n".join(wrap(title, width)), x=0.01, ha="left", fontsize=12,
                        fontweight="bold", color=INK)  # fmt: skip
        for axes in figure.axes:
            axes.set_title(axes.get_title("left"), loc="left", fontsize=10, color=GREY)
    if mark:
        figure.draw_without_rendering()  # so that it is known where everything is
    for *place, x, y, words in mark:
        name = place[0] if place else next(iter(named))
        allowed = f"(panel, x, y, text) with a panel of {list(named)}"
        if len(named) == 1:
            allowed = "(x, y, text)"
        check(len(place) == (len(named) > 1) and name in named, "mark", (*place, x, y), allowed)
        _annotate(named[name], x, y, words)
    _set_fonts(figure)
    return Plot(to_png(figure), *told(text or alt, alt, title, mark))


def _set_fonts(figure: Figure) -> None:
    """Fonts of the language that is set: matplotlib takes each character from the first with it."""
    from matplotlib.font_manager import get_font_names
    from matplotlib.text import Text

    there = {"DejaVu Sans", *get_font_names()}
    fonts = [name for name in translated("DejaVu Sans").split(", ") if name in there]
    if fonts != ["DejaVu Sans"]:
        for text in figure.findobj(Text):
            text.set_fontfamily(fonts)


def _annotate(axes: Axes, x: float, y: float, words: str) -> None:
    """A ring around the point, and words beside it, where they cover the least of the curves."""
    left, right = axes.get_xlim()
    low, high = axes.get_ylim()
    inside = min(left, right) <= x <= max(left, right) and min(low, high) <= y <= max(low, high)
    allowed = f"x from {number(left)} to {number(right)}, y from {number(low)} to {number(high)}"
    check(inside, "mark", (x, y), allowed)
    lines = "\n".join(wrap(words, 32))
    right, up = free_spot(axes, (x, y), lines)
    axes.annotate(
        lines, (x, y), xytext=(right, up), fontsize=MARK_SIZE, textcoords="offset points",
        ha="left" if right > 0 else "right", va="center", color=ACCENT, zorder=9,
        fontweight="bold", arrowprops={"arrowstyle": "-", "color": ACCENT, "shrinkB": 6},
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
    )  # fmt: skip
    axes.plot(x, y, marker="o", markersize=13, markerfacecolor="none", markeredgecolor=ACCENT,
              markeredgewidth=1.6, zorder=9, scalex=False, scaley=False)  # fmt: skip
