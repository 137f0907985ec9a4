"""TTFT, TPOT and ITL: what the users of a run feel, read from a trace or a simulation's result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from minivllm.lab.sim.result import PERCENTILES, RequestTimes, SimulationResult, percentiles
from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Plot
from minivllm.lab.viz.draw.palette import GREY, INK, OKABE_ITO
from minivllm.lab.viz.draw.plots import LINES, MARKERS, new_figure, plot, style_axes
from minivllm.lab.viz.draw.wording import count, number, pad, shorten
from minivllm.lab.viz.model.times import Times
from minivllm.trace import Trace
from minivllm.trace.records import Forked, Preempted, RequestAdded, Sampled, Scheduled, SwappedOut
from minivllm.utils.validation import check

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_SPANS = 400
FEW = 20
LONG_NAMES = {
    "TTFT": "time to first token",
    "TPOT": "time per output token",
    "ITL": "inter-token latency",
}
UNITS = {"steps": ("steps", 1.0), "seconds": ("ms", 1e3)}  # name, and how many in one of them
Source = Trace | SimulationResult


@dataclass(frozen=True)
class Latencies:
    """Latencies of all sequences of one run, by ``clock``; shown in ``unit``.

    TTFT is the time from arrival to the first token, TPOT one sequence's mean time per token after
    the first, ITL a single gap between two tokens of one sequence.
    """

    name: str
    clock: str
    spans: Sequence[RequestTimes]
    itl: Sequence[float]

    @property
    def unit(self) -> str:
        """ "steps" or "ms"."""
        return UNITS[self.clock][0]

    @property
    def scale(self) -> float:
        """Units in a step or a second."""
        return UNITS[self.clock][1]

    @cached_property
    def values(self) -> dict[str, list[float]]:
        """Sorted, by measure, in ``unit``."""
        measures = {
            "TTFT": [span.ttft for span in self.spans],
            "TPOT": [s.tpot for s in self.spans if s.num_output_tokens > 1],
            "ITL": self.itl,
        }
        return {name: sorted(v * self.scale for v in values) for name, values in measures.items()}

    @cached_property
    def percentiles(self) -> dict[str, dict[str, float]]:
        return {measure: percentiles(values) for measure, values in self.values.items()}


def latency(
    runs: Source | Mapping[str, Source], clock: str = "steps", title: str | None = None,
    mark: Sequence[Mark] = (),
) -> Plot:  # fmt: skip
    """Draw how long sequences wait for their first token, and between tokens.

    Of one run, first every sequence's span: hatched until its first token, solid until its last.
    Then for each measure the share of sequences (for ITL: of tokens) that had to wait no longer.

    Args:
        runs: a trace or a simulation's result, or several by name to be compared.
        clock: of traces. "steps" is the same on every machine; "seconds" is what was measured. A
            simulation's result is always in its own seconds.
        title, mark: what it shows, and points to circle: ("TTFT", "TPOT" or "ITL", x, y, text).

    Raises:
        ValueError: for a trace in which no token was sampled, or runs in different units.
    """
    named = runs if isinstance(runs, Mapping) else {"": runs}
    check(len(named) > 0, "runs", runs, "at least one")
    read = [read_latencies(source, clock, name) for name, source in named.items()]
    units = {run.unit for run in read}
    check(len(units) == 1, "runs", sorted(units), "all in the same unit; choose clock='seconds'")
    figure, panels = _draw_latency(read)
    return plot(figure, _alt(read), _text(read), title=title, mark=mark, panels=panels)


def read_latencies(source: Source, clock: str = "steps", name: str = "") -> Latencies:
    """The same as numbers.

    Raises:
        ValueError: for a trace in which no token was sampled.
    """
    if isinstance(source, SimulationResult):
        return Latencies(name, "seconds", source.requests, source.inter_token_times)
    times = Times(source, clock)
    arrival: dict[str, float] = {}
    prompt: dict[str, int] = {}
    tokens: dict[str, list[float]] = {}  # by sequence: when each was there
    preemptions: Counter[str] = Counter()
    cached: Counter[str] = Counter()  # by sequence: tokens of its first hit
    for record in source.of(RequestAdded, Forked, Scheduled, Sampled, Preempted, SwappedOut):
        match record:
            case RequestAdded(_, seq_id, prompt_token_ids):
                arrival[seq_id] = times.arrival(record)
                prompt[seq_id] = len(prompt_token_ids)
            case Forked(_, seq_id, child_id):
                arrival[child_id] = arrival[seq_id]
                prompt[child_id] = prompt[seq_id]
            case Scheduled(_, seq_id, "new", num_computed_tokens):
                cached[seq_id] = num_computed_tokens
            case Sampled(step, seq_id):
                tokens.setdefault(seq_id, []).append(times.end(step))
            case Preempted(_, seq_id) | SwappedOut(_, seq_id):
                preemptions[seq_id] += 1
    check(len(tokens) > 0, "trace", source, "of a run in which at least one token was sampled")
    spans = [
        RequestTimes(
            seq_id,
            arrival_time=arrival[seq_id],
            first_token_time=at[0],
            finished_time=at[-1],
            num_prompt_tokens=prompt[seq_id],
            num_output_tokens=len(at),
            num_samples=1,
            num_cached_tokens=cached[seq_id],
            num_preemptions=preemptions[seq_id],
        )
        for seq_id, at in tokens.items()
    ]
    gaps = [b - a for at in tokens.values() for a, b in pairwise(at)]
    return Latencies(name, clock, spans, gaps)


def _text(runs: list[Latencies]) -> str:
    """One line per run and measure, in columns."""
    width = max(len(shorten(run.name, 28)) for run in runs) + 2 * (
        len(runs) > 1 or runs[0].name != ""
    )
    unit = runs[0].unit
    heads = "".join(f"{f'p{rank}':>10}" for rank in PERCENTILES)
    lines = [f"{pad('', width)}{pad(f'in {unit}', 8)}{heads}"]
    for run in runs:
        name = shorten(run.name, 28)
        for measure, found in run.percentiles.items():
            if run.values[measure]:
                numbers = "".join(f"{number(value):>10}" for value in found.values())
                lines.append(f"{pad(name, width)}{pad(measure, 8)}{numbers}")
                name = ""
    return "\n".join(line.rstrip() for line in lines)


def _alt(runs: list[Latencies]) -> str:
    said = []
    for run in runs:
        parts = [
            f"{measure} {number(found['p50'])} at p50 and {number(found['p99'])} at p99"
            for measure, found in run.percentiles.items()
            if run.values[measure]
        ]
        who = f"{run.name}: " if run.name else ""
        said.append(f"{who}{count(len(run.spans), 'sequence')}, {', '.join(parts)}")
    return f"Latencies in {runs[0].unit}. {'; '.join(said)}."


# -- drawn ---------------------------------------------------------------------------------------


def _draw_latency(runs: list[Latencies]) -> tuple[Figure, dict[str, Axes]]:
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
    return figure, dict(zip(measures, panels, strict=True))


def _draw_spans(axes: Axes, run: Latencies) -> None:
    style_axes(axes)
    axes.grid(axis="y", visible=False)
    spans = run.spans[:MAX_SPANS]
    rows = range(len(spans))
    few = len(spans) <= 60
    scale = run.scale
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
    """Draw the share that waited at most this long; a mark at each of the percentiles."""
    style_axes(axes)
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
        found = runs[0].percentiles[measure]
        title += "\n" + ", ".join(f"{name} {number(value)}" for name, value in found.items())
    axes.set_title(title, fontsize=10, loc="left", color=INK)
    axes.set_xlabel(runs[0].unit, fontsize=10, color=GREY)
