"""Speed-ups: curves of a ratio against a setting, and the line of 1 below which it is a loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Plot
from minivllm.lab.viz.draw.palette import GREY, INK, OKABE_ITO
from minivllm.lab.viz.draw.plots import LINES, MARKERS, new_figure, plot, style_axes
from minivllm.lab.viz.draw.wording import pad
from minivllm.utils.validation import check, is_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curves = Mapping[str, Mapping[float, float]]


def speedups(
    curves: Curves, x: str, title: str | None = None, log: bool = False,
    mark: Sequence[Mark] = (),
) -> Plot:  # fmt: skip
    """Draw each curve of speed-ups; above 1 it is a gain, below 1 a loss.

    Args:
        curves: by name, speed-ups by setting; all have the same settings.
        x: what the setting is.
        title, mark: what it shows, and points to circle: (setting, speed-up, text).
        log: the settings are drawn in equal steps of their logarithm.

    Raises:
        ValueError: if there is no curve, or they differ in their settings.
    """
    check(len(curves) > 0, "curves", curves, "at least one")
    settings = list(next(iter(curves.values())))
    for name, curve in curves.items():
        ok = list(curve) == settings and all(map(is_number, curve.values()))
        check(ok, f"curves[{name!r}]", curve, f"a number for each of {settings}")
    return plot(_draw(curves, x, log), _alt(curves, x), _text(curves, x), title, mark)


def _draw(curves: Curves, x: str, log: bool) -> Figure:
    figure = new_figure(6.8, 3.8)
    axes = figure.subplots()
    style_axes(axes)
    settings = list(next(iter(curves.values())))
    axes.axhline(1, color=INK, linewidth=1.2)
    for i, (name, curve) in enumerate(curves.items()):
        axes.plot(
            settings, list(curve.values()), color=OKABE_ITO[i % len(OKABE_ITO)], label=name,
            linestyle=LINES[i % len(LINES)], marker=MARKERS[i % len(MARKERS)], markersize=4,
        )  # fmt: skip
    if log:
        axes.set_xscale("log", base=2)
    axes.set_xticks(settings, [f"{value:g}" for value in settings])
    axes.minorticks_off()
    axes.set_xlabel(x, fontsize=10, color=GREY)
    axes.set_ylabel("speed-up", fontsize=10, color=GREY)
    axes.legend(fontsize=9, frameon=False)
    return figure


def _text(curves: Curves, x: str) -> str:
    settings = list(next(iter(curves.values())))
    width = max(map(len, [*curves, x])) + 2
    lines = [pad(x, width) + "".join(f"{value:>7g}" for value in settings)]
    for name, curve in curves.items():
        lines.append(pad(name, width) + "".join(f"{value:7.2f}" for value in curve.values()))
    return "\n".join(lines)


def _alt(curves: Curves, x: str) -> str:
    told = []
    for name, curve in curves.items():
        (first, start), *_, (last, end) = curve.items()
        told.append(f"{name} {start:.2f} at {first:g} and {end:.2f} at {last:g}")
    return f"Speed-up by {x}: {'; '.join(told)}."
