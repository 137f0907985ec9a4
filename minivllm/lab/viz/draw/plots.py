"""Curves by matplotlib, which is imported only when something is drawn: paper, axes, PNG."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

from minivllm.lab.viz.draw.palette import GREY, LINE

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

    drawn, small = BytesIO(), BytesIO()
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


def number(value: float) -> str:
    """Three digits that matter."""
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
