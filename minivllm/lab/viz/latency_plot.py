"""Latency curves by matplotlib, which is imported only when something is drawn."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

from minivllm.lab.viz.palette import GREY, INK, LINE, OKABE_ITO

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from minivllm.lab.viz.latency import Latencies

LINES = ("-", "--", "-.", ":")
MARKERS = "osD^vP*X"
MAX_SPANS = 400
FEW = 20
LONG_NAMES = {
    "TTFT": "time to first token",
    "TPOT": "time per output token",
    "ITL": "inter-token latency",
}


def new_figure(width: float, height: float) -> Figure:
    """White paper and quiet axes; no window, no global state of matplotlib is touched."""
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


def quiet(axes: Axes) -> None:
    """Axes that step back behind what they show."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(LINE)
    axes.tick_params(colors=GREY, labelsize=9)
    axes.grid(color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)


def draw_latency(runs: list[Latencies]) -> bytes:
    """The spans of a single run above, a curve per measure and run below."""
    measures = [m for m in LONG_NAMES if any(run.values[m] for run in runs)]
    if len(runs) == 1:
        height = min(4.0, 1.0 + 0.16 * len(runs[0].spans))
        figure = new_figure(9.4, 2.9 + height)
        above, below = figure.subfigures(2, 1, height_ratios=(height, 2.9))
        _draw_spans(above.subplots(), runs[0])
    else:
        figure = below = new_figure(9.4, 3.3)
    panels = below.subplots(1, len(measures), sharey=True, squeeze=False)[0]
    for axes, measure in zip(panels, measures, strict=True):
        _draw_shares(axes, measure, runs)
    panels[0].set_ylabel("share that waits no longer", fontsize=10, color=GREY)
    if len(runs) > 1:
        panels[-1].legend(fontsize=9, frameon=False, loc="lower right")
    return to_png(figure)


def _draw_spans(axes: Axes, run: Latencies) -> None:
    quiet(axes)
    axes.grid(axis="y", visible=False)
    spans = run.spans[:MAX_SPANS]
    rows = range(len(spans))
    few, scale = len(spans) <= 60, run.scale
    starts = [span.arrival_time * scale for span in spans]
    waits = [span.ttft * scale for span in spans]
    firsts = [span.first_token_time * scale for span in spans]
    decodes = [(span.finished_time - span.first_token_time) * scale for span in spans]
    look = {"height": 0.8, "edgecolor": GREY, "linewidth": 0.6} if few else {"height": 1.0}
    waiting = {"color": "white", "hatch": "////"} if few else {"color": "#dcdcdc"}
    axes.barh(rows, waits, left=starts, **waiting, **look)
    axes.barh(rows, decodes, left=firsts, color=OKABE_ITO[0], **look)
    axes.set_ylim(len(spans) - 0.5, -0.5)
    axes.set_xlim(left=0)
    if len(spans) <= 24:
        axes.set_yticks(rows, [span.request_id for span in spans])
    more = "" if len(run.spans) <= MAX_SPANS else f" (the first {MAX_SPANS} of {len(run.spans)})"
    title = f"Sequences{more}: {'hatched' if few else 'grey'} until the first token, then blue"
    axes.set_title(title, fontsize=10, loc="left", color=INK)
    axes.set_xlabel("step" if run.unit == "steps" else run.unit, fontsize=10, color=GREY)


def _draw_shares(axes: Axes, measure: str, runs: list[Latencies]) -> None:
    """How many had to wait at most so long; a mark at each of the percentiles."""
    quiet(axes)
    for index, run in enumerate(runs):
        values = run.values[measure]
        if not values:
            continue
        colour = OKABE_ITO[index % len(OKABE_ITO)]
        shares = [i / len(values) for i in range(1, len(values) + 1)]
        axes.step(
            [0, values[0], *values], [0, 0, *shares], where="post", color=colour, linewidth=1.8,
            linestyle=LINES[index % len(LINES)], label=run.name or None,
        )  # fmt: skip
        if len(values) < FEW:  # between so few the percentiles are interpolated, off the curve
            continue
        found = run.percentiles[measure]
        axes.plot(
            list(found.values()), [int(name[1:]) / 100 for name in found], linestyle="none",
            marker=MARKERS[index % len(MARKERS)], color=colour, markersize=5,
        )  # fmt: skip
    axes.set_ylim(0, 1.04)
    axes.set_xlim(left=0)
    title = f"{measure}: {LONG_NAMES[measure]}"
    if len(runs) == 1:
        from minivllm.lab.viz.latency import number

        found = runs[0].percentiles[measure]
        title += "\n" + ", ".join(f"{name} {number(value)}" for name, value in found.items())
    axes.set_title(title, fontsize=10, loc="left", color=INK)
    axes.set_xlabel(runs[0].unit, fontsize=10, color=GREY)
