"""The knee: what users wait for, as the load comes near what the server can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from minivllm.lab.sim.result import SimulationResult
from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Plot
from minivllm.lab.viz.draw.palette import GREY, INK, OKABE_ITO
from minivllm.lab.viz.draw.plots import LINES, MARKERS, label_decades, new_figure, plot, style_axes
from minivllm.lab.viz.draw.wording import number
from minivllm.utils.validation import check, is_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = {"p50": "half wait less", "p90": "nine of ten", "p99": "99 of 100"}


def knee(
    runs: Mapping[float, SimulationResult], title: str | None = None, mark: Sequence[Mark] = ()
) -> Plot:
    """Draw TTFT, and how many requests are answered, over the rate at which they come.

    Left is the time to first token at three percentiles, on a logarithmic scale; right is how many
    requests were done in a second while requests came: as many, until the server cannot keep up.

    Args:
        runs: by request rate, in requests a second.
        title, mark: what it shows, and points to circle: ("TTFT" or "requests", x, y, text).

    Raises:
        ValueError: if there are fewer than two, or a rate is no number above 0.
    """
    check(len(runs) > 1, "runs", runs, "at least two rates")
    for rate in runs:
        check(is_number(rate) and rate > 0, "a rate", rate, "a number above 0")
    ordered = dict(sorted(runs.items()))
    figure = _draw(ordered)
    panels = dict(zip(("TTFT", "requests"), figure.axes, strict=True))
    return plot(figure, _alt(ordered), _text(ordered), title=title, mark=mark, panels=panels)


def _came_and_done(run: SimulationResult) -> tuple[float, float]:
    """Requests a second, while requests came: what is done after the last one does not count."""
    seconds = max(request.arrival_time for request in run.requests)
    done = sum(request.finished_time <= seconds for request in run.requests)
    return len(run.requests) / seconds, done / seconds


def _rows(runs: dict[float, SimulationResult]) -> list[tuple]:
    return [
        (rate, *_came_and_done(run), *(run.ttft[name] * 1e3 for name in PARTS))
        for rate, run in runs.items()
    ]


def _text(runs: dict[float, SimulationResult]) -> str:
    head = ("rate", "came/s", "done/s", *(f"TTFT {name}" for name in PARTS))
    lines = ["".join(f"{word:>11}" for word in head) + "  in ms"]
    for row in _rows(runs):
        lines.append("".join(f"{number(value):>11}" for value in row))
    return "\n".join(lines)


def _alt(runs: dict[float, SimulationResult]) -> str:
    first, last = _rows(runs)[0], _rows(runs)[-1]
    return (
        f"TTFT at p99 is {number(first[-1])} ms at {number(first[0])} requests a second and "
        f"{number(last[-1])} ms at {number(last[0])}, of which {number(last[2])} are done."
    )


def _draw(runs: dict[float, SimulationResult]) -> Figure:
    figure = new_figure(9.4, 3.4)
    waits, served = figure.subplots(1, 2)
    rates = list(runs)
    for index, (name, words) in enumerate(PARTS.items()):
        values = [run.ttft[name] * 1e3 for run in runs.values()]
        waits.plot(
            rates, values, color=OKABE_ITO[index], linestyle=LINES[index], marker=MARKERS[index],
            label=f"{name}: {words}",
        )  # fmt: skip
    waits.set_yscale("log")
    label_decades(waits.yaxis)
    waits.set_title("TTFT (ms), logarithmic", fontsize=10, loc="left", color=INK)
    waits.legend(fontsize=9, frameon=False, loc="upper left")
    came, done = zip(*map(_came_and_done, runs.values()), strict=True)
    served.plot(rates, came, color=GREY, linestyle=":", marker="s", label="came")
    served.plot(rates, done, color=OKABE_ITO[0], marker="o", label="done meanwhile")
    served.set_ylim(bottom=0)
    served.set_title("requests in a second", fontsize=10, loc="left", color=INK)
    served.legend(fontsize=9, frameon=False, loc="upper left")
    for axes in (waits, served):
        style_axes(axes)
        axes.set_xlim(left=0)
        axes.set_xlabel("rate: requests a second", fontsize=10, color=GREY)
    return figure
