"""Rank lanes: what each rank does for one plan, operation by operation, and what it exchanges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot

from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, MAX_WIDTH, Swatch, sheet
from minivllm.lab.viz.draw.palette import GREY, INK, OKABE_ITO, PAPER
from minivllm.lab.viz.draw.svg import Drawing
from minivllm.lab.viz.draw.wording import count, listing, pad
from minivllm.trace import Trace
from minivllm.trace.records import Communicated, RankWorked, Scheduled
from minivllm.utils.validation import check

# Sizes in pixels.
NAMES = 60
COLUMN = 46
ROW = 40
SYMBOL = 20

SIGNS = {"all_reduce": "⊕", "all_gather": "‖", "send": "↓", "recv": "↳"}
WORDS = {
    "all_reduce": "sum over the ranks of a stage", "all_gather": "parts side by side",
    "send": "send to the next stage", "recv": "receive",
}  # fmt: skip


@dataclass(frozen=True)
class _Lane:
    """One rank's operations, the first of them in column ``start``."""

    rank: int
    stage: int
    start: int
    operations: list[Communicated]


def rank_lanes(
    trace: Trace, plan: int = 0, title: str | None = None, mark: Sequence[Mark] = ()
) -> Figure:
    """Draw the ranks' operations for one plan in their order, without times: a lane for each rank.

    Bars are what a rank computes alone. Below each column are the bytes that a rank gives there.

    Args:
        trace: of an engine with several ranks.
        plan: step that made it.
        title, mark: what it shows, and operations to point at: (rank, its number from 0, text).

    Raises:
        ValueError: for a plan of which no rank has exchanged anything, or too much.
    """
    lanes = _read(trace, plan)
    end = max(lane.start + len(lane.operations) for lane in lanes)
    most = (MAX_WIDTH - 2 * MARGIN - NAMES) // COLUMN
    check(end <= most, "plan", plan, f"one with at most {most} operations in a row, not {end}")
    num_tokens = sum(r.num_tokens for r in trace.of(Scheduled) if r.step == plan)
    head = f"Ranks' operations, plan {plan}"
    facts = f"{count(num_tokens, 'token')} · {count(len(lanes), 'rank')}"
    alt = f"{head}. {facts}. {'. '.join(_all_told(lanes))}."
    drawing = _drawing(lanes, end, (head, facts, alt))
    return finish(drawing, _text(lanes, head, facts), title, mark)


def _read(trace: Trace, plan: int) -> list[_Lane]:
    done: dict[int, list[Communicated]] = {
        record.rank: [] for record in trace.of(RankWorked) if record.plan == plan
    }
    for record in trace.of(Communicated):
        if record.plan == plan:
            done[record.rank].append(record)
    check(any(done.values()), "plan", plan, "a plan with tokens, of several ranks")
    first = [rank for rank, operations in done.items() if operations[0].op != "recv"]
    starts = [0]
    lanes = []
    for rank, operations in sorted(done.items()):
        stage = rank // len(first)
        if stage == len(starts):  # it receives behind the sends of the stage before it
            starts.append(starts[-1] + len(lanes[-1].operations))
        lanes.append(_Lane(rank, stage, starts[stage], operations))
    return lanes


def _all_told(lanes: list[_Lane]) -> list[str]:
    """Operations in words, those of ranks that do the same only once."""
    ranks: dict[str, list[str]] = {}
    for lane in lanes:
        names = {"all_reduce": "all-reduce", "all_gather": "all-gather", "recv": "receive"}
        counts = Counter((names.get(one.op, one.op), one.num_bytes) for one in lane.operations)
        words = [f"{count(number, name)} of {size:,} bytes" for (name, size), number in
                 counts.items()]  # fmt: skip
        ranks.setdefault(listing(words), []).append(str(lane.rank))
    return [
        f"Rank{'s' if len(those) > 1 else ''} {listing(those)}: {words}"
        for words, those in ranks.items()
    ]


def _drawing(lanes: list[_Lane], end: int, words: tuple[str, str, str]) -> Drawing:
    left, top = MARGIN + NAMES, HEADER_HEIGHT + 6
    bottom = top + ROW * len(lanes) + 30
    used = {one.op for lane in lanes for one in lane.operations}
    legend = [(_sign_swatch(op), told) for op, told in WORDS.items() if op in used]
    drawing = sheet(*words, left + COLUMN * end, bottom, legend)
    for row, lane in enumerate(lanes):
        y = top + ROW * row
        colour = OKABE_ITO[lane.rank % len(OKABE_ITO)]
        drawing.text(MARGIN, y + 24, f"rank {lane.rank}", font_weight="bold")
        for index, one in enumerate(lane.operations):
            x = left + COLUMN * (lane.start + index)
            if one.op != "recv":
                drawing.rect(x + 1, y + 14, COLUMN - SYMBOL - 4, 12, rx=2, fill=colour)
            drawing.place((lane.rank, index), x + COLUMN - SYMBOL, y + 10, SYMBOL, SYMBOL)
    _draw_links(drawing, lanes, left, top)
    with drawing.group(fill=GREY, font_size=11, text_anchor="middle"):
        drawing.text(left - 22, bottom - 10, "bytes")
        for column in range(end):
            sizes = [lane.operations[column - lane.start].num_bytes for lane in lanes
                     if 0 <= column - lane.start < len(lane.operations)]  # fmt: skip
            x = left + COLUMN * column + COLUMN - SYMBOL / 2
            drawing.text(x, bottom - 10, _short(max(sizes)), COLUMN - 4)
    return drawing


def _short(num_bytes: int) -> str:
    """ "640", "10.0 k", "1.3 M"."""
    for unit, size in (("M", 10**6), ("k", 10**3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return str(num_bytes)


def _draw_links(drawing: Drawing, lanes: list[_Lane], left: float, top: float) -> None:
    """A sign for each operation, and a line that joins the ranks which take part in it."""
    size = sum(lane.stage == 0 for lane in lanes)
    for row, lane in enumerate(lanes):
        for index, one in enumerate(lane.operations):
            x = left + COLUMN * (lane.start + index) + COLUMN - SYMBOL / 2
            y = top + ROW * row + 20
            if one.group == "tp" and lane.rank % size == 0:
                drawing.path(f"M{x:g} {y:g}v{ROW * (size - 1):g}", stroke=INK, stroke_width=1.5)
            if one.op == "send":  # to the rank of the next stage, between the two columns
                tip = x + COLUMN - 8, y + ROW * size - 8
                length = hypot(COLUMN - 8, ROW * size - 8)
                along = (COLUMN - 8) / length, (ROW * size - 8) / length
                drawing.arrow(f"M{x:g} {y:g}L{tip[0]:g} {tip[1]:g}", tip, along, INK)
    for row, lane in enumerate(lanes):
        for index, one in enumerate(lane.operations):
            x = left + COLUMN * (lane.start + index) + COLUMN - SYMBOL / 2
            _draw_sign(drawing, one.op, x, top + ROW * row + 20)


def _draw_sign(drawing: Drawing, op: str, x: float, y: float) -> None:
    line = {"stroke": INK, "stroke_width": 1.5}
    if op == "all_reduce":
        drawing.path(f"M{x - 8:g} {y:g}a8 8 0 1 0 16 0a8 8 0 1 0-16 0Z", fill=PAPER, **line)
        drawing.path(f"M{x - 4.5:g} {y:g}h9M{x:g} {y - 4.5:g}v9", **line)
        return
    drawing.rect(x - 8, y - 8, 16, 16, rx=2, fill=PAPER, **line)
    if op == "all_gather":
        drawing.path(f"M{x - 3:g} {y - 5:g}v10M{x + 3:g} {y - 5:g}v10", **line)
    elif op == "send":
        drawing.path(f"M{x - 4:g} {y - 1:g}l4 5l4-5", fill="none", **line)
    else:
        drawing.path(f"M{x - 4:g} {y + 4:g}h8", **line)


def _sign_swatch(op: str) -> Swatch:
    def draw(drawing: Drawing, x: float, y: float) -> None:
        _draw_sign(drawing, op, x + 10, y + 7)

    return draw


def _text(lanes: list[_Lane], head: str, facts: str) -> str:
    lines = [head, facts, ""]
    for lane in lanes:
        signs = " ".join(SIGNS[one.op] for one in lane.operations)
        lines.append(pad(f"rank {lane.rank}", 9) + "  " * lane.start + signs)
    lines += ["", *_all_told(lanes)]
    used = {one.op for lane in lanes for one in lane.operations}
    signs = "   ".join(f"{SIGNS[op]} {told}" for op, told in WORDS.items() if op in used)
    return "\n".join([*lines, "", signs])
