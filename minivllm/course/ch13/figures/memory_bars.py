"""Memory bars: what fills the memory of one or several devices, a stacked bar for each model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Plot
from minivllm.lab.viz.draw.palette import GREY, INK, OKABE_ITO
from minivllm.lab.viz.draw.plots import new_figure, plot, style_axes
from minivllm.lab.viz.draw.wording import pad
from minivllm.utils.validation import check, is_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HATCHES = ("", "//", "", "\\\\", "")
COLOURS = (OKABE_ITO[0], OKABE_ITO[3], OKABE_ITO[2], OKABE_ITO[1], OKABE_ITO[5])
Bars = Mapping[str, Mapping[str, float]]


def memory_bars(
    devices: Mapping[str, tuple[float, Bars]], title: str | None = None,
    mark: Sequence[Mark] = (),
) -> Plot:  # fmt: skip
    """Draw what fills memory: side by side a group of stacked bars for each device.

    Args:
        devices: by name, the bytes of the device, which the axis reaches up to, and its bars: by
            the model's name, the bytes of each part ("weights", "KV cache", ...), the lowest first.
            A device of less than one GiB is drawn in MiB.
        title, mark: what it shows, and points to circle: (device, number of the bar, y, text),
            without the device if there is one only.

    Raises:
        ValueError: if there is no bar, or a size is not a number above 0.
    """
    check(any(bars for _, bars in devices.values()), "devices", devices, "at least one bar")
    for name, (total, bars) in devices.items():
        sizes = [total, *(size for parts in bars.values() for size in parts.values())]
        ok = all(is_number(size) and size > 0 for size in sizes)
        check(ok, f"devices[{name!r}]", devices[name], "bytes above 0")
    figure = _draw(devices)
    panels = dict(zip(devices, figure.axes, strict=True))
    return plot(figure, _alt(devices), _text(devices), title=title, mark=mark, panels=panels)


def _part_names(devices: Mapping[str, tuple[float, Bars]]) -> list[str]:
    """The parts of all bars, in the order in which they come."""
    bars = [parts for _, bars in devices.values() for parts in bars.values()]
    return list(dict.fromkeys(name for parts in bars for name in parts))


def _unit(total: float) -> tuple[float, str]:
    return (2**30, "GiB") if total >= 2**30 else (2**20, "MiB")


def _draw(devices: Mapping[str, tuple[float, Bars]]) -> Figure:
    names = _part_names(devices)
    widths = [max(1.6, len(bars)) for _, bars in devices.values()]
    figure = new_figure(1.6 + 0.75 * sum(widths), 3.7)
    panels = figure.subplots(1, len(devices), squeeze=False, width_ratios=widths)[0]
    for axes, (name, (total, bars)) in zip(panels, devices.items(), strict=True):
        style_axes(axes)
        _draw_device(axes, name, total, bars, names)
    handles = {}
    for axes in panels:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    figure.legend(handles.values(), handles, loc="outside lower center", ncol=5, frameon=False,
                  fontsize=9)  # fmt: skip
    return figure


def _draw_device(axes: Axes, name: str, total: float, bars: Bars, names: list[str]) -> None:
    size, unit = _unit(total)
    for x, parts in enumerate(bars.values()):
        bottom = 0.0
        for part, num_bytes in parts.items():
            look = names.index(part) % len(COLOURS)
            axes.bar(x, num_bytes / size, bottom=bottom, color=COLOURS[look], hatch=HATCHES[look],
                     edgecolor="white", label=None if x else part)  # fmt: skip
            bottom += num_bytes / size
    axes.set_title(f"{name}, {total / size:.1f} {unit}", fontsize=10, color=INK)
    axes.set(ylim=(0, total / size), xlim=(-0.7, max(0.7, len(bars) - 0.3)))
    axes.set_ylabel(unit, fontsize=9, color=GREY)
    axes.set_xticks(range(len(bars)), list(bars), rotation=30, ha="right", fontsize=8)


def _text(devices: Mapping[str, tuple[float, Bars]]) -> str:
    width = max(map(len, devices)) + 2
    bar_width = max(len(bar) for _, bars in devices.values() for bar in bars) + 2
    lines = []
    for name, (total, bars) in devices.items():
        size, unit = _unit(total)
        for bar, parts in bars.items():
            told = "   ".join(f"{part} {n / size:6.2f}" for part, n in parts.items())
            lines.append(f"{pad(name, width)}{pad(bar, bar_width)}{told} {unit}")
    return "\n".join(lines)


def _alt(devices: Mapping[str, tuple[float, Bars]]) -> str:
    told = []
    for name, (total, bars) in devices.items():
        for bar, parts in bars.items():
            part, most = max(parts.items(), key=lambda item: item[1])
            told.append(f"{bar} on {name}: {part} {most / total:.0%}")
    return f"Stacked bars of memory; the largest part of each: {'; '.join(told)}."
