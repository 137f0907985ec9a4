"""The timeline: which request did what in which step, and what that cost in tokens and blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minivllm.lab.sim.cost import CostModel
from minivllm.lab.translation import translated
from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import MARGIN, sheet
from minivllm.lab.viz.draw.palette import GREY, LINE
from minivllm.lab.viz.draw.step_axis import LANE_HEIGHT, NAMES, ROOM, TOP, StepAxis, lane_top
from minivllm.lab.viz.draw.svg import Drawing, text_width
from minivllm.lab.viz.draw.wording import TERMINAL, pad, sparkline
from minivllm.lab.viz.figures.item_lanes import draw_item_lane, item_entries
from minivllm.lab.viz.figures.timeline_rows import Rows
from minivllm.lab.viz.model.timeline_model import Cell, TimelineWindow, read_history
from minivllm.lab.viz.model.times import step_milliseconds
from minivllm.trace import Trace
from minivllm.utils.math_utils import cdiv
from minivllm.utils.validation import check, is_int

LANE_GAP = 18
HEAD = 26  # of a run among several
MARK = {
    "prefill": "█", "verify": "+", "decode": "•", "idle": "·", "waiting": "░", "receiving": "↓",
    "sending": "↑", "": " ",
}  # fmt: skip
AHEAD_MARK = "◌"
WASTED_MARK = "/"
LEGEND = {
    "prefill": "█ prefill",
    "decode": "• decode",
    "verify": "+ decode with drafts",
    "idle": "· running, but not in this step",
    "waiting": "░ waiting",
    "receiving": "↓ K and V come",
    "sending": "↑ K and V are sent",
}


def timeline(
    trace: Trace,
    first: int | None = None,
    last: int | None = None,
    clock: str | CostModel = "steps",
    title: str | None = None,
    mark: Sequence[Mark] = (),
) -> Figure:
    """Draw what every request did in every step, with the step's budget and blocks below.

    Dark cells are prefill chunks (with how many tokens), light ones decodes (one token; with
    drafts, +n for the n tokens that were gained), hatched ones wait; × is a preemption, a black bar
    at the right the end of a request. Dotted with an arrow is one whose K and V come from another
    engine (↓), or go there after its end (↑). With plans in flight a step is a call of the engine:
    a decode that was planned before its token was known is dotted, and crossed out if it came after
    the end of its sequence. With many steps the cells shrink and lose their labels, and equal
    neighbours become one. Beyond 300 sequences the last ones are left out, and it says so. If
    there are drafts, a third lane shows how many were verified and how many of them accepted. If
    there are several KV cache groups, the blocks of each kind have a lane of their own, as high as
    that of all blocks. If there are items such as pictures, two lanes show which are encoded and
    which the encoder cache keeps, each in its colour.

    Args:
        trace: what the engine wrote.
        first: the first step drawn; None is the first that is there.
        last: the last step drawn, itself included; None is the last there is.
        clock: "steps" draws all equally wide; "seconds" as wide as they took by the trace's clock;
            a ``CostModel`` as wide as they would take on its hardware.
        title, mark: what it shows, and places to point at: (sequence's letter, "tokens", "blocks",
            "encoded" or "kept", step, text).

    Raises:
        ValueError: for a trace without steps, a range of steps or a place to mark that it does not
            have, or another clock.
    """
    return draw_window(_window(trace, first, last, clock), title, mark)


def compare(
    traces: Mapping[str, Trace],
    first: int | None = None,
    last: int | None = None,
    clock: str | CostModel = "steps",
    title: str | None = None,
    mark: Sequence[Mark] = (),
) -> Figure:
    """Draw the timelines of several runs below each other, with one axis and one legend.

    A step (or a millisecond) is as wide in each of them, and so is a token or block high.

    Args:
        traces: what the engines wrote, each with the name of its run.
        first, last, clock: as for ``timeline``; a run that is over sooner ends where it does.
        title, mark: what it shows, and places to point at: (run, sequence's letter, "tokens" or
            "blocks", step, text).

    Raises:
        ValueError: as ``timeline``, or if there is nothing to compare.
    """
    check(isinstance(traces, Mapping) and traces, "traces", traces, "a dict of traces by name")
    ends = [trace.num_steps - 1 for trace in traces.values()]
    check(last is None or last <= max(ends), "last", last, f"at most {max(ends)}")
    windows = {
        name: _window(trace, first, None if last is None else min(last, end), clock)
        for (name, trace), end in zip(traces.items(), ends, strict=True)
    }
    begin = min(window.first for window in windows.values())
    stop = max(window.last for window in windows.values())
    longest = max(sum(window.milliseconds or [0]) for window in windows.values())
    each = [_tops(window) for window in windows.values()]
    tops = {name: max(top[name] for top in each) for name in each[0]}
    rows = {}
    for name, window in windows.items():
        axis = StepAxis(begin, stop)
        if window.milliseconds:
            axis = StepAxis(window.first, window.last, window.milliseconds, ROOM / longest)
        rows[name] = Rows(window, axis)
    text = "\n\n".join(_text(w, f"{name}: {w.title.lower()}") for name, w in windows.items())
    alt = " ".join(f"{name}: {window.alt}" for name, window in windows.items())
    return finish(_drawing(rows, tops, alt), text, title, mark)


def _window(
    trace: Trace, first: int | None, last: int | None, clock: str | CostModel
) -> TimelineWindow:
    history = read_history(trace)
    end = max(history.steps)
    first = trace.first_step if first is None else first
    last = end if last is None else last
    begin = trace.first_step
    allowed = f"between {trace.first_step} and {end}"
    check(is_int(first) and begin <= first <= end, "first", first, allowed)
    check(is_int(last) and first <= last <= end, "last", last, f"between first and {end}")
    return TimelineWindow.of(history, first, last, step_milliseconds(trace, history, clock))


def draw_window(
    window: TimelineWindow, title: str | None = None, mark: Sequence[Mark] = ()
) -> Figure:
    """The timeline of these steps; see ``timeline``."""
    rows = Rows(window, StepAxis(window.first, window.last, window.milliseconds))
    drawing = _drawing({"": rows}, _tops(window), window.alt)
    return finish(drawing, _text(window, window.title), title, mark)


# -- drawn ---------------------------------------------------------------------------------------


def _tops(window: TimelineWindow) -> dict[str, int]:
    """Values at the full height of the lanes that all runs have: tokens and blocks."""
    return {name: lane_top(values, limit) for name, _, values, limit in window.lanes[:2]}


def _drawing(runs: Mapping[str, Rows], tops: Mapping[str, int], alt: str) -> Drawing:
    """Runs below each other; ``tops`` are as for ``_tops``."""
    window = next(iter(runs.values())).window
    widest = max((rows.axis for rows in runs.values()), key=lambda axis: axis.right)
    title = window.title
    facts = window.facts
    head = 0
    if "" not in runs:
        title = "Timelines with one scale"
        head = HEAD
        facts = " · ".join(f"{name}: {len(r.window.steps)} steps" for name, r in runs.items())
        facts += _ratio([sum(rows.window.lanes[0][2]) for rows in runs.values()])
    preempted = any(cell.preempted for rows in runs.values() for cell in rows.window.cells)
    entries = {
        text: (swatch, text)
        for rows in runs.values()
        for swatch, text in (*rows.legend_entries(preempted), *item_entries(rows.window))
    }
    heads = [text_width(r.window.facts) + _facts_x(name) for name, r in runs.items() if name]
    heights = {name: head + _height(rows) for name, rows in runs.items()}
    bottom = TOP + sum(heights.values())
    drawing = sheet(
        title, facts, alt,
        right=max(widest.right, *heads, 0), bottom=bottom, legend=list(entries.values()),
        # where a page finds the column of a step
        data_first=window.first, data_x=widest.x(window.first), data_step=widest.cell,
        data_top=float(TOP), data_bottom=float(bottom - LANE_GAP),
    )  # fmt: skip
    widest.draw(drawing, bottom - LANE_GAP)
    down = head
    for name, rows in runs.items():
        with drawing.shifted(down, *([name] if name else [])):
            if name:
                drawing.text(MARGIN, TOP - 8, name, font_weight="bold")
                drawing.text(_facts_x(name), TOP - 8, rows.window.facts, halo=True, fill=GREY)
            _draw_run(drawing, rows, tops)
        down += heights[name]
    return drawing


def _ratio(tokens: list[int]) -> str:
    """Tokens computed by two runs, where bars of one scale would hide the lesser."""
    low, high = min(tokens), max(tokens)
    if len(tokens) != 2 or low == 0 or high < 2 * low:
        return ""
    return f" · {tokens[0]:,} against {tokens[1]:,} tokens computed, {high / low:.3g} times"


def _facts_x(name: str) -> float:
    """Place of a run's facts beside its name."""
    return MARGIN + max(NAMES, text_width(name, bold=True) + 12)


def _height(rows: Rows) -> float:
    window = rows.window
    num_lanes = len(window.lanes) + len(window.item_lanes) + (window.num_drafts > 0)
    footnote = 16 if window.footnote else 0
    return rows.bottom - TOP + footnote + LANE_GAP + num_lanes * (LANE_HEIGHT + LANE_GAP)


def _draw_run(drawing: Drawing, rows: Rows, tops: Mapping[str, int]) -> None:
    """All but the axis."""
    window = rows.window
    axis = rows.axis
    rows.draw(drawing)
    if window.footnote:
        drawing.text(MARGIN, rows.bottom + 14, window.footnote, fill=GREY)
    y = rows.bottom + (16 if window.footnote else 0) + LANE_GAP
    for name, limit_name, values, limit in window.lanes:
        top = tops.get(name, tops["blocks"])
        axis.draw_lane(drawing, y, name, limit_name=limit_name, values=values, limit=limit, top=top)
        y += LANE_HEIGHT + LANE_GAP
    for item_lane in window.item_lanes:
        draw_item_lane(drawing, axis, item_lane, y)
        y += LANE_HEIGHT + LANE_GAP
    if window.num_drafts:
        _draw_draft_lane(drawing, axis, window, y)


def _draw_draft_lane(drawing: Drawing, axis: StepAxis, window: TimelineWindow, y: float) -> None:
    """Bars of a step's drafts, hatched, and in front of them those that were accepted."""
    drafted = [step.num_drafts for step in window.steps]
    accepted = [step.num_accepted for step in window.steps]
    scale = LANE_HEIGHT / max(drafted)
    bottom = y + LANE_HEIGHT
    drawing.text(MARGIN, y + 14, "drafts", font_weight="bold")
    with drawing.group(fill=GREY, font_size=11):
        drawing.text(MARGIN, y + 28, "grey: accepted")
        drawing.text(MARGIN, y + 42, "hatched: rejected")
    drawing.path(f"M{axis.x(axis.first):g} {bottom:g}H{axis.right:.2f}", stroke=LINE)
    outline = axis.bars(drafted, bottom, scale)
    drawing.hatch_path(outline)
    drawing.path(outline, fill="none", stroke=GREY, stroke_width=0.6)
    drawing.path(axis.bars(accepted, bottom, scale), fill="#c6c6c6")
    with drawing.group(font_size=11, text_anchor="middle"):
        for step, (kept, of) in enumerate(zip(accepted, drafted, strict=True), axis.first):
            labels = (f"{kept}/{of}", f"{kept}") if of else ()
            if label := next((x for x in labels if axis.fits(x, step)), None):
                drawing.text(axis.x(step + 0.5), bottom - 4, label, halo=True)


# -- in characters -------------------------------------------------------------------------------


def _text(window: TimelineWindow, title: str) -> str:
    """Rows of requests, then the lanes. Never wider than a terminal if that can be helped."""
    names = [owner.name(10) for owner, _ in window.rows]
    usual = [name for name, *_ in window.lanes]
    usual += [lane.name for lane in window.item_lanes]
    name_width = max(map(len, [*names, *usual])) + 1
    lanes = [values for _, _, values, _ in window.lanes]
    lanes += [lane.values for lane in window.item_lanes]
    lanes += [_draft_shares(window)] if window.num_drafts else []
    lanes += [[f"{ms:.0f}" for ms in window.milliseconds]] if window.milliseconds else []
    widest = max(len(str(value)) for values in lanes for value in values)
    width = max(2, widest, len(str(window.last))) + 2
    room = TERMINAL - name_width
    limits = max(len(f"  {name} {limit}") for _, name, _, limit in window.lanes)
    draw = _wide if width * len(window.steps) + limits <= room else _narrow
    lines = [title, window.facts, ""]
    lines += (
        (pad(name, name_width) + row).rstrip() for name, row in draw(window, names, width, room)
    )
    lines += ["", window.footnote] if window.footnote else []
    return "\n".join([*lines, "", _legend(window, numbers=draw is _wide)])


def _wide(window: TimelineWindow, names: list[str], width: int, room: int):
    """One column per step, with numbers."""
    steps = range(window.first, window.last + 1)
    yield "step", "".join(f"{step:>{width}}" for step in steps)
    if window.milliseconds:
        yield "ms", "".join(f"{ms:>{width}.0f}" for ms in window.milliseconds)
    for name, (_, cells) in zip(names, window.rows, strict=True):
        yield name, "".join(_wide_cell(cells.get(step), width) for step in steps)
    for name, limit_name, values, limit in window.lanes:
        numbers = "".join(f"{value:>{width}}" for value in values)
        yield name, f"{numbers}  {translated(limit_name)} {limit}"
    for lane in window.item_lanes:
        numbers = "".join(f"{value:>{width}}" for value in lane.values)
        yield lane.name, numbers + (f"  {lane.limit_name} {lane.limit}" if lane.limit else "")
    if window.num_drafts:
        shares = "".join(f"{share:>{width}}" for share in _draft_shares(window))
        yield "drafts", f"{shares}  accepted/all"


def _draft_shares(window: TimelineWindow) -> list[str]:
    steps = window.steps
    return [f"{s.num_accepted}/{s.num_drafts}" if s.num_drafts else "" for s in steps]


def _wide_cell(cell: Cell | None, width: int) -> str:
    if cell is None:
        return " " * width
    label = str(cell.num_tokens) if cell.kind == "prefill" else MARK[cell.kind]
    label = f"+{1 + cell.num_accepted}" if cell.kind == "verify" else label
    label = AHEAD_MARK if cell.is_placeholder else label
    label = WASTED_MARK if cell.is_wasted else label
    label = "×" if cell.preempted else label
    end = "¦" * cell.dropped + "|" * cell.finished
    return f"{label + end:>{width + len(end)}}"[len(end) :]


def _narrow(window: TimelineWindow, names: list[str], width: int, room: int):
    """One character per step, or for several steps the rarest of what happened in them."""
    per_column = cdiv(len(window.steps), room)
    starts = range(window.first, window.last + 1, per_column)
    note = "" if per_column == 1 else f"  (one column: {per_column} steps)"
    yield "step", f"{window.first} to {window.last}{note}"
    for name, (_, cells) in zip(names, window.rows, strict=True):
        buckets = ([cells.get(s) for s in range(start, start + per_column)] for start in starts)
        yield name, "".join(_mark([cell for cell in b if cell]) for b in buckets)
    for name, limit_name, values, limit in window.lanes:
        peak = max(values)
        yield "", ""
        yield name, sparkline(values, peak, per_column)
        yield "", f"peak {peak} (█), {translated(limit_name)} {limit}"
    for lane in window.item_lanes:
        peak = max(lane.values)
        yield "", ""
        yield lane.name, sparkline(lane.values, peak, per_column)
        yield "", f"peak {peak} (█)" + (f", {lane.limit_name} {lane.limit}" if lane.limit else "")
    if window.num_drafts:
        accepted = [step.num_accepted for step in window.steps]
        yield "", ""
        yield "drafts", sparkline(accepted, max(accepted), per_column)
        yield "", window.drafts_told


def _mark(cells: list[Cell]) -> str:
    if any(cell.preempted for cell in cells):
        return "×"
    if any(cell.is_wasted for cell in cells):
        return WASTED_MARK
    if any(cell.finished for cell in cells):
        return "|"
    kinds = {cell.kind for cell in cells}
    return next((MARK[kind] for kind in MARK if kind in kinds), " ")


def _legend(window: TimelineWindow, numbers: bool) -> str:
    kinds = {cell.kind for cell in window.cells}
    marks = [text for kind, text in LEGEND.items() if kind in kinds]
    if numbers and "prefill" in kinds:
        marks[0] = "number: prefill tokens"
    if numbers and any(cell.is_placeholder for cell in window.cells):
        marks.append(f"{AHEAD_MARK} decode before its token is known")
    if window.num_wasted:
        marks.append(f"{WASTED_MARK} came after the end: wasted")
    if any(cell.preempted for cell in window.cells):
        marks.append("× preempted")
    if any(cell.finished for cell in window.cells):
        marks.append("| finished")
    if numbers and any(cell.dropped for cell in window.cells):
        marks.append("¦ beam dropped")
    return "  ".join(map(translated, marks))
