"""The timeline: which request did what in which step, and what that cost in tokens and blocks."""

from __future__ import annotations

from minivllm.lab.viz.chart import Chart
from minivllm.lab.viz.figure import Figure
from minivllm.lab.viz.history import read_history
from minivllm.lab.viz.layout import MARGIN, Legend, draw_header, header_width
from minivllm.lab.viz.palette import GREY
from minivllm.lab.viz.step_axis import LANE_HEIGHT, TOP, StepAxis
from minivllm.lab.viz.svg import Drawing
from minivllm.lab.viz.timeline_rows import Rows
from minivllm.lab.viz.timeline_text import timeline_text
from minivllm.trace import Trace
from minivllm.validation import check, is_int

LANE_GAP = 18


def timeline(trace: Trace, first: int | None = None, last: int | None = None) -> Figure:
    """Draw what every request did in every step, with the step's budget and blocks below.

    Dark cells are prefill chunks (with how many tokens), light ones decodes (one token), hatched
    ones wait; × is a preemption, a black bar at the right the end of a request. With many steps
    the cells shrink and lose their labels, and equal neighbours become one. Beyond 300 sequences
    the last ones are left out, and it says so.

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


# -- drawn ---------------------------------------------------------------------------------------


def _svg(chart: Chart) -> str:
    axis = StepAxis(chart.first, chart.last)
    rows = Rows(chart, axis)
    width = max(axis.right + MARGIN, header_width(chart.title, chart.facts))
    legend = Legend(rows.legend_entries(), width - 2 * MARGIN)
    lanes_top = rows.bottom + (16 if chart.footnote else 0) + LANE_GAP
    bottom = lanes_top + len(chart.lanes) * (LANE_HEIGHT + LANE_GAP)
    drawing = Drawing(
        width, bottom + legend.height + MARGIN / 2, chart.title, chart.alt,
        # where a page finds the column of a step
        data_first=chart.first, data_x=axis.x(chart.first), data_step=axis.cell,
        data_top=float(TOP), data_bottom=float(bottom - LANE_GAP),
    )  # fmt: skip
    draw_header(drawing, chart.title, chart.facts)
    axis.draw(drawing, bottom - LANE_GAP)
    rows.draw(drawing)
    if chart.footnote:
        drawing.text(MARGIN, rows.bottom + 14, chart.footnote, fill=GREY)
    for index, lane in enumerate(chart.lanes):
        axis.draw_lane(drawing, lanes_top + index * (LANE_HEIGHT + LANE_GAP), *lane)
    legend.draw(drawing, MARGIN, bottom)
    return drawing.to_string()
