"""The timeline in characters: a number or a mark per step, or one column for several steps."""

from __future__ import annotations

from minivllm.lab.viz.chart import Chart
from minivllm.lab.viz.history import Cell
from minivllm.lab.viz.wording import pad, shorten

TERMINAL = 96  # columns
MARK = {"prefill": "█", "decode": "•", "idle": "·", "waiting": "░", "": " "}
LEGEND = {
    "prefill": "█ prefill",
    "decode": "• decode",
    "idle": "· running, but not in this step",
    "waiting": "░ waiting",
}
LEVELS = " ▁▂▃▄▅▆▇█"


def timeline_text(chart: Chart) -> str:
    """Rows of requests, then the two lanes. Never wider than a terminal if that can be helped."""
    names = [f"{owner.letter} {shorten(owner.seq_id, 10)}" for owner, _ in chart.rows]
    name_width = max(map(len, [*names, "tokens"])) + 1
    widest = max(len(str(value)) for _, _, values, _ in chart.lanes for value in values)
    width = max(2, widest, len(str(chart.last))) + 2
    room = TERMINAL - name_width
    limits = max(len(f"  {name} {limit}") for _, name, _, limit in chart.lanes)
    draw = _wide if width * len(chart.steps) + limits <= room else _narrow
    lines = [chart.title, chart.facts, ""]
    lines += (
        (pad(name, name_width) + row).rstrip() for name, row in draw(chart, names, width, room)
    )
    lines += ["", chart.footnote] if chart.footnote else []
    return "\n".join([*lines, "", _legend(chart, numbers=draw is _wide)])


def _wide(chart: Chart, names: list[str], width: int, room: int):
    """One column per step, with numbers."""
    steps = range(chart.first, chart.last + 1)
    yield "step", "".join(f"{step:>{width}}" for step in steps)
    for name, (_, cells) in zip(names, chart.rows, strict=True):
        yield name, "".join(_wide_cell(cells.get(step), width) for step in steps)
    for name, limit_name, values, limit in chart.lanes:
        numbers = "".join(f"{value:>{width}}" for value in values)
        yield name, f"{numbers}  {limit_name} {limit}"


def _wide_cell(cell: Cell | None, width: int) -> str:
    if cell is None:
        return " " * width
    label = str(cell.num_tokens) if cell.kind == "prefill" else MARK[cell.kind]
    label = "×" if cell.preempted else label
    end = "|" if cell.finished else "¦" if cell.dropped else ""
    return f"{label + end:>{width + len(end)}}"[len(end) :]


def _narrow(chart: Chart, names: list[str], width: int, room: int):
    """One character per step, or for several steps the rarest of what happened in them."""
    per_column = -(-len(chart.steps) // room)
    starts = range(chart.first, chart.last + 1, per_column)
    note = "" if per_column == 1 else f"  (one column: {per_column} steps)"
    yield "step", f"{chart.first} to {chart.last}{note}"
    for name, (_, cells) in zip(names, chart.rows, strict=True):
        buckets = ([cells.get(s) for s in range(start, start + per_column)] for start in starts)
        yield name, "".join(_mark([cell for cell in b if cell]) for b in buckets)
    for name, limit_name, values, limit in chart.lanes:
        peak = max(values)
        yield "", ""
        yield (
            name,
            "".join(
                LEVELS[-(-max(values[i : i + per_column]) * 8 // max(1, peak))]
                for i in range(0, len(values), per_column)
            ),
        )
        yield "", f"peak {peak} (█), {limit_name} {limit}"


def _mark(cells: list[Cell]) -> str:
    if any(cell.preempted for cell in cells):
        return "×"
    if any(cell.finished for cell in cells):
        return "|"
    kinds = {cell.kind for cell in cells}
    return next((MARK[kind] for kind in MARK if kind in kinds), " ")


def _legend(chart: Chart, numbers: bool) -> str:
    kinds = {cell.kind for cell in chart.cells}
    marks = [text for kind, text in LEGEND.items() if kind in kinds]
    if numbers and "prefill" in kinds:
        marks[0] = "number: prefill tokens"
    if any(cell.preempted for cell in chart.cells):
        marks.append("× preempted")
    if any(cell.finished for cell in chart.cells):
        marks.append("| finished")
    if numbers and any(cell.dropped for cell in chart.cells):
        marks.append("¦ beam dropped")
    return "  ".join(marks)
