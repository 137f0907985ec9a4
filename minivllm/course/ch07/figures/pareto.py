"""The trade between two costs: which settings are best, and which are beaten on both counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from minivllm.lab.sim.result import SimulationResult
from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Plot
from minivllm.lab.viz.draw.palette import GREY, INK, OKABE_ITO
from minivllm.lab.viz.draw.plots import new_figure, plot, style_axes
from minivllm.lab.viz.draw.wording import number, pad
from minivllm.utils.validation import check, is_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Point = tuple[float, float] | SimulationResult


def pareto(
    points: Mapping[object, Point],
    x: str = "TTFT at p99 (ms)",
    y: str = "ITL at p99 (ms)",
    title: str | None = None,
    mark: Sequence[Mark] = (),
) -> Plot:
    """Draw settings as points in the plane of two costs; a line joins those that none beats.

    A point is beaten if another is at most as high in both costs, and lower in one.

    Args:
        points: by setting (a token budget, say), two numbers; or a simulation's result, of which
            TTFT and ITL at p99 are taken, in milliseconds.
        x, y: what the numbers are.
        title, mark: what it shows, and points to circle: (x, y, text).

    Raises:
        ValueError: if there is no point, or one is not two finite numbers.
    """
    check(len(points) > 0, "points", points, "at least one")
    named = {str(name): _pair(point) for name, point in points.items()}
    for name, pair in named.items():
        ok = len(pair) == 2 and all(map(is_number, pair))
        check(ok, f"points[{name!r}]", pair, "two finite numbers")
    best = frontier(named)
    figure = _draw(named, best, x, y)
    text = _text(named, best, x, y)
    return plot(figure, _alt(named, best, x, y), text, title, mark)


def frontier(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """The names of those that none beats, from the lowest first cost to the highest."""
    best: list[str] = []
    for name, pair in sorted(points.items(), key=lambda item: item[1]):
        if not best or pair[1] < points[best[-1]][1] or pair == points[best[-1]]:
            best.append(name)
    return best


def _pair(point: Point) -> tuple[float, float]:
    if isinstance(point, SimulationResult):
        return point.ttft["p99"] * 1e3, point.itl["p99"] * 1e3
    return tuple(point)


def _draw(points: dict[str, tuple[float, float]], best: list[str], x: str, y: str) -> Figure:
    figure = new_figure(6.4, 4.2)
    axes = figure.subplots()
    style_axes(axes)
    line = [points[name] for name in best]
    axes.plot(*zip(*line, strict=True), color=OKABE_ITO[0], linewidth=1.6, marker="o")
    beaten = [pair for name, pair in points.items() if name not in best]
    if beaten:
        axes.plot(*zip(*beaten, strict=True), color=GREY, marker="x", linestyle="none")
    for pair in dict.fromkeys(points.values()):
        names = [name for name in points if points[name] == pair]
        weight = "bold" if names[0] in best else "normal"
        axes.annotate(
            ", ".join(names), pair, xytext=(7, 6), textcoords="offset points", fontsize=9,
            fontweight=weight, color=INK,
        )  # fmt: skip
    axes.margins(0.14)
    axes.set_xlabel(x, fontsize=10, color=GREY)
    axes.set_ylabel(y, fontsize=10, color=GREY)
    return figure


def _text(points: dict[str, tuple[float, float]], best: list[str], x: str, y: str) -> str:
    width = max(map(len, points)) + 2
    lines = [f"{pad('', width)}{x:>20}{y:>20}"]
    for name, pair in points.items():
        numbers = "".join(f"{number(value):>20}" for value in pair)
        lines.append(f"{pad(name, width)}{numbers}{'' if name in best else '  beaten'}")
    return "\n".join(lines)


def _alt(points: dict[str, tuple[float, float]], best: list[str], x: str, y: str) -> str:
    told = "; ".join(
        f"{name}: {number(points[name][0])}, {number(points[name][1])}" for name in best
    )
    return f"{x} against {y} for {len(points)} settings; none beats {told}."
