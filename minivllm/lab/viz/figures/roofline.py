"""The roofline (Williams et al. 2009): what a machine allows, and the places of work under it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import atan2, degrees
from typing import TYPE_CHECKING

from minivllm.lab.sim.cost import Hardware
from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Plot
from minivllm.lab.viz.draw.palette import ACCENT, GREY, INK, LINE, OKABE_ITO
from minivllm.lab.viz.draw.plots import LINES, MARKERS, new_figure, plot, style_axes
from minivllm.lab.viz.draw.wording import number, pad
from minivllm.utils.validation import check, is_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Point = float | tuple[float, float]


def roofline(
    machines: Hardware | Sequence[Hardware],
    points: Mapping[str, Mapping[object, Point]],
    title: str | None = None,
    mark: Sequence[Mark] = (),
    moved: tuple[str, str] | None = None,
) -> Plot:
    """Draw the roofline of a machine, and work below it, on logarithmic axes.

    It rises with the operations that are done for each byte moved, as steeply as bandwidth allows,
    up to the ridge; from there on it is flat, at the peak of arithmetic.

    Args:
        machines: their peaks. Of several, points belong to the first; the others' roofs are dashed.
        points: by series and label. One number is operations per byte; the point is on the
            roof, where that work is at best, hollow. Two are operations per byte and operations per
            second as measured, filled; a thin line leads to the roof above it.
        title, mark: what it shows, and points to circle: (x, y, text).
        moved: two series; an arrow leads from each point of the first to that of the second with
            the same label.

    Raises:
        ValueError: if there is no machine or no point, a point is not one or two numbers above 0,
            or the series that are moved have no label in common.
    """
    roofs = [machines] if isinstance(machines, Hardware) else list(machines)
    check(len(roofs) > 0, "machines", machines, "at least one")
    read = [
        _read(roofs[0], series, str(label), point)
        for series, named in points.items()
        for label, point in named.items()
    ]
    check(len(read) > 0, "points", points, "at least one")
    pairs = _moved(read, moved)
    told = "; ".join(
        f"{old.label} moves from {number(old.intensity)} to {number(new.intensity)}"
        for old, new in pairs
    )
    alt = _alt(roofs, read) + (
        f" From {pairs[0][0].series} to {pairs[0][1].series}: {told}." if pairs else ""
    )
    return plot(_draw(roofs, read, pairs), alt, _text(roofs, read), title, mark)


@dataclass(frozen=True)
class _Spot:
    """One point as it is drawn."""

    series: str
    label: str
    intensity: float  # operations per byte
    rate: float  # operations per second
    roof: float  # the same, at most
    measured: bool
    bound: str  # what limits it


def _read(machine: Hardware, series: str, label: str, point: Point) -> _Spot:
    numbers = tuple(point) if isinstance(point, (tuple, list)) else (point,)
    ok = len(numbers) in (1, 2) and all(is_number(n) and n > 0 for n in numbers)
    check(ok, f"points[{series!r}][{label!r}]", point, "one or two finite numbers above 0")
    intensity = numbers[0]
    roof = machine.attainable(numbers[0])
    bound = "bandwidth" if intensity < machine.ridge else "arithmetic"
    return _Spot(
        series,
        label,
        intensity,
        rate=(*numbers, roof)[1],
        roof=roof,
        measured=len(numbers) == 2,
        bound=bound,
    )


def _moved(spots: list[_Spot], moved: tuple[str, str] | None) -> list[tuple[_Spot, _Spot]]:
    """The points that an arrow joins, by their labels."""
    if moved is None:
        return []
    old, new = ({spot.label: spot for spot in spots if spot.series == name} for name in moved)
    pairs = [(spot, new[label]) for label, spot in old.items() if label in new]
    check(len(pairs) > 0, "moved", moved, "two series that have a label in common")
    return pairs


def _draw(roofs: list[Hardware], spots: list[_Spot], pairs: list[tuple[_Spot, _Spot]]) -> Figure:
    figure = new_figure(7.4, 4.1)
    axes = figure.subplots()
    style_axes(axes)
    xs = [spot.intensity for spot in spots] + [machine.ridge for machine in roofs]
    low, high = min(xs) / 2.5, max(xs) * 6
    peaks = [machine.flops_per_s for machine in roofs]
    axes.set(xscale="log", yscale="log", xlim=(low, high))
    axes.set_ylim(min(spot.rate for spot in spots) / 2.5, max(peaks) * 2.5)
    axes.yaxis.set_major_formatter(lambda value, _: _si(value))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.set_xlabel("operations per byte", fontsize=10, color=GREY)
    axes.set_ylabel("operations per second", fontsize=10, color=GREY)
    for index, series in enumerate(dict.fromkeys(spot.series for spot in spots)):
        _draw_series(axes, [spot for spot in spots if spot.series == series], index)
    for old, new in pairs:
        axes.annotate(
            "", (new.intensity, new.rate), (old.intensity, old.rate), zorder=2,
            arrowprops={"arrowstyle": "-|>", "color": ACCENT, "shrinkA": 7, "shrinkB": 7,
                        "linewidth": 1.4, "connectionstyle": "arc3,rad=-0.7"},
        )  # fmt: skip
    if any(spot.series for spot in spots):
        axes.legend(fontsize=9, frameon=False, loc="lower right")
    figure.draw_without_rendering()  # from here on the axes know how steep a slope looks
    for index, machine in enumerate(roofs):
        _draw_roof(axes, machine, index, machine.flops_per_s not in peaks[:index], spots)
    _name_spots(axes, spots)
    return figure


def _draw_roof(
    axes: Axes, machine: Hardware, index: int, names_peak: bool, spots: list[_Spot]
) -> None:
    low, high = axes.get_xlim()
    begin = max(low, axes.get_ylim()[0] / machine.bytes_per_s)  # where the slope enters the picture
    xs = [begin, machine.ridge, high]
    ys = [machine.attainable(x) for x in xs]
    colour = INK if index == 0 else GREY
    axes.plot(xs, ys, color=colour, linestyle=LINES[min(index, 3)], zorder=2,
              linewidth=1.8 if index == 0 else 1.1)  # fmt: skip
    look = {"fontsize": 9, "color": colour, "textcoords": "offset points"}
    (x0, y0), (x1, y1) = axes.transData.transform(list(zip(xs, ys, strict=True))[:2])
    name = f"{machine.name}: {_si(machine.bytes_per_s)}B/s"
    half = 2.8 * len(name)  # pixels of half the label, which goes where the slope is emptiest
    length = ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5
    points = axes.transData.transform([(spot.intensity, spot.rate) for spot in spots])
    middles = [half + 12 + (length - 2 * half) * part / 20 for part in range(17)]
    gaps = [
        min(abs((x - x0) * (x1 - x0) / length + (y - y0) * (y1 - y0) / length - at)
            for x, y in points)
        for at in middles
    ]  # fmt: skip
    roomy = [at for at, gap in zip(middles, gaps, strict=True) if gap > half + 8]
    share = ((roomy or [middles[gaps.index(max(gaps))]])[0] - half) / length
    place = axes.transData.inverted().transform((x0 + share * (x1 - x0), y0 + share * (y1 - y0)))
    axes.annotate(
        name, place, xytext=(-4, 6),
        rotation=degrees(atan2(y1 - y0, x1 - x0)), rotation_mode="anchor", **look,
    )  # fmt: skip
    if names_peak:
        axes.annotate(f"{_si(machine.flops_per_s)}FLOP/s", (high, ys[-1]), xytext=(-4, 4),
                      ha="right", **look)  # fmt: skip
    if index == 0:
        axes.axvline(machine.ridge, color=LINE, linestyle=":", linewidth=1.2)
        axes.annotate(f"ridge {number(machine.ridge)}", (machine.ridge, 0.02), xytext=(4, 0),
                      xycoords=("data", "axes fraction"), **look)  # fmt: skip


def _draw_series(axes: Axes, spots: list[_Spot], index: int) -> None:
    colour = OKABE_ITO[(3 - index) % len(OKABE_ITO)]
    for spot in spots:
        if spot.measured:
            axes.vlines(
                spot.intensity,
                min(spot.rate, spot.roof),
                max(spot.rate, spot.roof),
                color=colour,
                linewidth=0.8,
                linestyle=":",
            )
        axes.plot(
            spot.intensity, spot.rate, linestyle="none", marker=MARKERS[index % len(MARKERS)],
            color=colour, markerfacecolor=colour if spot.measured else "white", zorder=3,
            markersize=7.5, markeredgewidth=1.6, label=spot.series if spot is spots[0] else None,
        )  # fmt: skip


def _name_spots(axes: Axes, spots: list[_Spot]) -> None:
    """Label each point on the side where it covers least: no other label, no point, no edge."""
    from matplotlib.patheffects import withStroke
    from matplotlib.transforms import Bbox

    halo = withStroke(linewidth=2.5, foreground="white")
    inside = axes.bbox
    taken = [text.get_window_extent() for text in axes.texts]
    if axes.get_legend():
        taken.append(axes.get_legend().get_window_extent())
    places = axes.transData.transform([(spot.intensity, spot.rate) for spot in spots])
    taken += [Bbox.from_extents(x - 5, y - 5, x + 5, y + 5) for x, y in places]
    sides = [("left", 8, -13), ("right", -8, 5), ("left", 8, 5), ("right", -8, -13),
             ("left", 8, -26), ("right", -8, 18), ("left", 8, 18), ("right", -8, -26)]  # fmt: skip
    for spot in spots:
        label = axes.annotate(
            spot.label, (spot.intensity, spot.rate), fontsize=9, textcoords="offset points",
            xytext=(0, 0), color=INK, path_effects=[halo], zorder=4,
        )  # fmt: skip
        found = []
        for align, x, y in sides:
            label.set(ha=align, position=(x, y))
            box = label.get_window_extent()
            outside = box.x0 < inside.x0 or box.x1 > inside.x1 or box.y0 < inside.y0
            found.append((sum(map(box.overlaps, taken)) + 2 * outside, len(found), box))
        _, best, box = min(found, key=lambda one: one[:2])
        align, x, y = sides[best]
        label.set(ha=align, position=(x, y))
        taken.append(box)


def _si(value: float) -> str:
    """312 T and 40 G, for operations or bytes per second."""
    for unit, name in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.3g} {name}"
    return f"{value:.3g} "


def _text(roofs: list[Hardware], spots: list[_Spot]) -> str:
    width = max(len(spot.series) for spot in spots) + 2
    label_width = max(len(spot.label) for spot in spots) + 2
    lines = [
        f"{roof.name}: {_si(roof.flops_per_s)}FLOP/s, {_si(roof.bytes_per_s)}B/s, "
        f"ridge at {number(roof.ridge)} operations per byte"
        for roof in roofs
    ]
    lines.append(
        f"{'':{width + label_width}}{'op/byte':>9}{'FLOP/s':>10}{'of roofline':>13}  limit"
    )
    for spot in spots:
        share = f"{spot.rate / spot.roof:.0%}" if spot.measured else "on it"
        lines.append(
            f"{pad(spot.series, width)}{pad(spot.label, label_width)}{number(spot.intensity):>9}"
            f"{_si(spot.rate):>10}{share:>13}  {spot.bound}"
        )
    return "\n".join(lines)


def _alt(roofs: list[Hardware], spots: list[_Spot]) -> str:
    machine = roofs[0]
    told = "; ".join(
        f"{spot.series} {spot.label} at {number(spot.intensity)}"
        + (f", {spot.rate / spot.roof:.0%} of the roofline" if spot.measured else "")
        for spot in spots
    )
    return (
        f"The roofline of {machine.name} rises at {_si(machine.bytes_per_s)}B/s up to "
        f"{number(machine.ridge)} operations per byte and is flat from there, at "
        f"{_si(machine.flops_per_s)}FLOP/s. Operations per byte: {told}."
    )
