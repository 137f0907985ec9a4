"""The timeline: which request did what in which step, and what that cost in tokens and blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from minivllm.trace import Trace
from minivllm.validation import check, is_int
from minivllm.viz.chart import Chart
from minivllm.viz.figure import Figure
from minivllm.viz.history import Cell, read_history
from minivllm.viz.layout import (
    HEADER_HEIGHT,
    MARGIN,
    MAX_WIDTH,
    NOBODY,
    SWATCH_HEIGHT,
    SWATCH_WIDTH,
    Legend,
    Swatch,
    draw_header,
    header_width,
)
from minivllm.viz.palette import GREY, INK, LINE, PAPER, Owner
from minivllm.viz.svg import Drawing
from minivllm.viz.timeline_text import timeline_text
from minivllm.viz.wording import count, shorten, span

NAMES = 128  # width of what stands to the left of the cells
LANE_HEIGHT = 46
LANE_GAP = 18
SEPARATE = 12  # cells narrower than this are merged into runs of the same kind


def timeline(trace: Trace, first: int | None = None, last: int | None = None) -> Figure:
    """Draw what every request did in every step, with the step's budget and blocks below.

    Dark cells are prefill chunks (with how many tokens), light ones decodes (one token), hatched
    ones wait; × is a preemption, a black bar at the right the end of a request. With many steps
    the cells shrink and lose their labels, and equal neighbours become one.

    Args:
        trace: what the engine wrote.
        first: the first step drawn; None is step 0.
        last: the last step drawn, itself included; None is the last there is.

    Raises:
        ValueError: for a trace without steps, or a range of steps that it does not have.
    """
    history = read_history(trace)
    end = len(history.steps) - 1
    first = 0 if first is None else first
    last = end if last is None else last
    check(is_int(first) and 0 <= first <= end, "first", first, f"between 0 and {end}")
    check(is_int(last) and first <= last <= end, "last", last, f"between first and {end}")
    chart = Chart.of(history, first, last)
    return Figure(_svg(chart), timeline_text(chart), chart.alt)


@dataclass(frozen=True)
class _Sizes:
    """Natural sizes that follow from how much there is to draw."""

    cell: float
    row: float

    @classmethod
    def of(cls, chart: Chart) -> _Sizes:
        room = MAX_WIDTH - 2 * MARGIN - NAMES
        cell = max(1.0, min(34.0, room / len(chart.steps)))
        heights = ((16, 24), (40, 16), (80, 12), (10**9, 4))
        row = next(height for most, height in heights if len(chart.rows) <= most)
        return cls(cell if cell < SEPARATE else float(int(cell)), row)

    def x(self, column: float) -> float:
        return MARGIN + NAMES + column * self.cell

    def fit(self, label: str | int) -> bool:
        """Is a cell wide enough for this text of 11 pixels?"""
        width = sum(6.4 if character.isdigit() else 9 for character in str(label))
        return width + 2 <= self.cell and self.row >= 12


# -- drawn ---------------------------------------------------------------------------------------


def _svg(chart: Chart) -> str:
    sizes = _Sizes.of(chart)
    width = max(sizes.x(len(chart.steps)) + MARGIN, header_width(chart.title, chart.facts))
    legend = Legend(_legend_entries(chart, sizes), width - 2 * MARGIN)
    top = HEADER_HEIGHT + 14  # below the step numbers
    lanes_top = top + len(chart.rows) * sizes.row + LANE_GAP
    bottom = lanes_top + len(chart.lanes) * (LANE_HEIGHT + LANE_GAP)
    drawing = Drawing(
        width, bottom + legend.height + MARGIN / 2, chart.title, chart.alt,
        # where a page finds the column of a step
        data_first=chart.first, data_x=sizes.x(0), data_step=sizes.cell,
        data_top=float(top), data_bottom=float(bottom - LANE_GAP),
    )  # fmt: skip
    draw_header(drawing, chart.title, chart.facts)
    _draw_axis(drawing, chart, sizes, bottom - LANE_GAP)
    for index, (owner, cells) in enumerate(chart.rows):
        y = top + index * sizes.row
        if index % max(1, round(12 / sizes.row)) == 0:
            _draw_name(drawing, owner, y, sizes.row)
        with drawing.group(font_size=11, text_anchor="middle", stroke_width=0.8):
            for start, stop, cell in _runs(chart, cells, sizes):
                x, run_width = sizes.x(start - chart.first), (stop - start) * sizes.cell
                _draw_run(drawing, owner, cell, x, y, run_width, sizes, span(start, stop - 1))
        for step, cell in cells.items():
            _draw_events(drawing, cell, sizes.x(step - chart.first), y, sizes)
    for index, lane in enumerate(chart.lanes):
        _draw_lane(drawing, lanes_top + index * (LANE_HEIGHT + LANE_GAP), sizes, *lane)
    legend.draw(drawing, MARGIN, bottom)
    return drawing.to_string()


def _runs(chart: Chart, cells: dict[int, Cell], sizes: _Sizes) -> Iterator[tuple[int, int, Cell]]:
    """Start, stop and look of what is drawn as one rectangle: one cell, or equal neighbours."""

    def key(step: int):
        cell = cells.get(step, Cell())
        return cell.kind, cell.preempted, step if sizes.cell >= SEPARATE else None

    for (kind, *_), group in groupby(range(chart.first, chart.last + 1), key):
        steps = list(group)
        if kind:
            yield steps[0], steps[-1] + 1, cells[steps[0]]


def _draw_axis(drawing: Drawing, chart: Chart, sizes: _Sizes, bottom: float) -> None:
    """Step numbers on top, and hairlines below those that are not shown at every cell."""
    every = next(n for n in (1, 5, 10, 20, 50, 100, 200, 500, 1000) if n * sizes.cell >= 26)
    y = HEADER_HEIGHT + 8
    with drawing.group(fill=GREY, font_size=11, text_anchor="middle"):
        drawing.text(MARGIN + NAMES - 22, y, "step")
        for step in range(chart.first, chart.last + 1):
            if step % every == 0:
                x = sizes.x(step - chart.first + 0.5)
                drawing.text(x, y, step)
                if every > 1:
                    drawing.path(f"M{x:.2f} {y + 4:g}V{bottom:g}", stroke="#dddddd")


def _draw_name(drawing: Drawing, owner: Owner, y: float, row: float) -> None:
    size = 13 if row >= 16 else 11
    baseline = y + max(row, 12) / 2 + size * 0.36
    drawing.text(
        MARGIN + 26, baseline, owner.letter, fill=owner.edge, font_weight="bold",
        font_size=size, text_anchor="end",
    )  # fmt: skip
    drawing.text(MARGIN + 34, baseline, shorten(owner.seq_id, 13), fill=GREY, font_size=11)


def _draw_run(
    drawing: Drawing, owner: Owner, cell: Cell, x: float, y: float, width: float, sizes: _Sizes,
    steps: str,
) -> None:  # fmt: skip
    gap = 1 if sizes.cell >= SEPARATE else 0
    inset = 1 if sizes.row > 4 else 0
    box = (x + gap, y + inset, width - 2 * gap, sizes.row - 2 * inset)
    fill, stroke = _look(cell.kind, owner)
    tooltip = f"{owner.letter}, {'step' if steps.isdigit() else 'steps'} {steps}: {cell.kind}"
    if gap and cell.num_tokens:
        tooltip += f" of {count(cell.num_tokens, 'token')} from position {cell.start}"
    drawing.rect(*box, tooltip, rx=2 * gap, fill=fill, stroke=stroke)
    if cell.kind == "waiting" and not cell.preempted:
        drawing.hatch(*box)
    label = {"prefill": cell.num_tokens, "decode": owner.letter}.get(cell.kind)
    if label is not None and sizes.fit(label):
        bold = {"fill": owner.ink, "font_weight": "bold"} if cell.kind == "prefill" else {}
        drawing.text(x + width / 2, y + sizes.row / 2 + 4, label, **bold)


def _draw_events(drawing: Drawing, cell: Cell, x: float, y: float, sizes: _Sizes) -> None:
    if cell.preempted:
        _draw_cross(drawing, x + sizes.cell / 2, y + sizes.row / 2, min(18, max(11, sizes.row)))
    if cell.finish_reason is not None:
        bar = min(4.0, max(2.0, sizes.cell / 4))
        drawing.rect(
            x + sizes.cell - bar, y, bar, sizes.row, f"finished: {cell.finish_reason}", fill=INK
        )


def _draw_cross(drawing: Drawing, x: float, y: float, size: float) -> None:
    drawing.text(
        x, y + size * 0.33, "×", font_size=size, font_weight="bold", text_anchor="middle",
        fill=INK, stroke=PAPER, stroke_width=3, paint_order="stroke",
    )  # fmt: skip


def _look(kind: str, owner: Owner) -> tuple[str, str]:
    """Fill and outline of a cell."""
    return {
        "prefill": (owner.solid, owner.edge),
        "decode": (owner.light, owner.edge),
        "waiting": ("#f4f4f4", LINE),
        "idle": (PAPER, owner.edge),
    }[kind]


def _draw_lane(
    drawing: Drawing, y: float, sizes: _Sizes, name: str, limit_name: str, values: list[int],
    limit: int,
) -> None:  # fmt: skip
    """Bars under a line for the limit; or up to their peak, if the limit is far above."""
    peak = max(values)
    near = peak * 4 >= limit
    scale = LANE_HEIGHT / max(1, limit if near else peak)
    bottom, right = y + LANE_HEIGHT, sizes.x(len(values))
    drawing.text(MARGIN, y + 14, name, font_weight="bold")
    with drawing.group(fill=GREY, font_size=11):
        drawing.text(MARGIN, y + 28, f"{limit_name} {limit}")
        drawing.text(MARGIN, y + 42, f"peak {peak}" if near else f"peak {peak} (full height)")
    if near:
        drawing.path(f"M{sizes.x(0):g} {y:g}H{right:.2f}", stroke=INK, stroke_dasharray="4 3")
    drawing.path(f"M{sizes.x(0):g} {bottom:g}H{right:.2f}", stroke=LINE)
    gap = 2 if sizes.cell >= SEPARATE else 0
    outline = [f"M{sizes.x(0):.2f} {bottom:g}"]
    for column, value in enumerate(values):
        x, top = sizes.x(column), bottom - value * scale
        down = f"V{bottom:g}" if gap else ""
        outline.append(f"H{x + gap:.2f}V{top:.2f}H{x + sizes.cell - gap:.2f}{down}")
    drawing.path("".join(outline) + f"V{bottom:g}Z", fill="#c6c6c6")
    if sizes.fit(peak):
        with drawing.group(font_size=11, text_anchor="middle"):
            for column, value in enumerate(values):
                top = bottom - value * scale
                label_y = top + 12 if value * scale >= 14 else top - 3
                drawing.text(sizes.x(column + 0.5), label_y, value)


def _legend_entries(chart: Chart, sizes: _Sizes) -> list[tuple[Swatch, str]]:
    kinds = {cell.kind for cell in chart.cells}
    chunks = [cell.num_tokens for cell in chart.cells if cell.kind == "prefill"]
    numbers = " (number: tokens)" if any(map(sizes.fit, chunks)) else ""
    preempted = any(cell.preempted for cell in chart.cells)
    meanings = {
        "prefill": ("prefill or recomputation" if preempted else "prefill chunk") + numbers,
        "decode": "decode (1 token)",
        "idle": "running, no budget left",
        "waiting": "waiting",
    }
    entries = [(_swatch(kind), text) for kind, text in meanings.items() if kind in kinds]
    if preempted:
        entries.append((_cross_swatch, "preempted"))
    if any(cell.finish_reason is not None for cell in chart.cells):
        entries.append((_end_swatch, "finished"))
    return entries


def _swatch(kind: str) -> Swatch:
    def draw(drawing: Drawing, x: float, y: float) -> None:
        fill, stroke = _look(kind, NOBODY)
        drawing.rect(x, y, SWATCH_WIDTH, SWATCH_HEIGHT, rx=2, fill=fill, stroke=stroke)
        if kind == "waiting":
            drawing.hatch(x, y, SWATCH_WIDTH, SWATCH_HEIGHT)

    return draw


def _cross_swatch(drawing: Drawing, x: float, y: float) -> None:
    _draw_cross(drawing, x + SWATCH_WIDTH / 2, y + SWATCH_HEIGHT / 2, 18)


def _end_swatch(drawing: Drawing, x: float, y: float) -> None:
    drawing.rect(x + SWATCH_WIDTH - 4, y - 1, 4, SWATCH_HEIGHT + 2, fill=INK)
