"""Draft lanes: step by step, the tokens guessed, those that were right, and the slots written."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import (
    HEADER_HEIGHT,
    MARGIN,
    MAX_WIDTH,
    Swatch,
    box_swatch,
    sheet,
)
from minivllm.lab.viz.draw.palette import GREY, INK, LINE, PAPER
from minivllm.lab.viz.draw.svg import MONO, MONO_EM, Drawing
from minivllm.lab.viz.draw.wording import shorten, token_label
from minivllm.lab.viz.model.draft_model import DraftLane, DraftLanes, read_draft_lanes
from minivllm.trace import Trace
from minivllm.utils.validation import check

NAMES = 84
CHIP_HEIGHT = 20
LANE = 52
NARROWEST = 26
WIDEST = 56
LOOKS = {
    "known": {"fill": "#dadada", "stroke": GREY},
    "accepted": {"fill": "#8fd3bf", "stroke": "#00523c"},
    "rejected": {"fill": PAPER, "stroke": GREY},
    "drawn": {"fill": "#f7d98a", "stroke": INK, "stroke_width": 2},
}
MEANINGS = {
    "known": "last token known before the step",
    "accepted": "draft accepted: the target draws the same",
    "rejected": "draft rejected",
    "drawn": "one token more, drawn by the target",
}

Decode = Callable[[int], str] | None


def draft_lanes(
    trace: Trace,
    seq_id: str | None = None,
    first: int | None = None,
    last: int | None = None,
    decode: Decode = None,
    title: str | None = None,
    mark: Sequence[Mark] = (),
) -> Figure:
    """Draw one sequence's steps as lanes over the positions of its text.

    In each lane the upper tokens are what the step computes: the last known token and its drafts.
    The lower ones are what the target model drew for the same positions. Under the lanes are the
    slots: how often each was written, and whose K and V it holds in the end.

    Args:
        trace: what the engine wrote.
        seq_id: which sequence; None is the first.
        first, last: steps, both included; None is the first and the last of the trace.
        decode: turns a token id into text, to be shown in place of the id.
        title, mark: what it shows, and tokens to point at: (step, position, text).

    Raises:
        ValueError: for a sequence or steps that the trace does not have, or too many positions.
    """
    model = read_draft_lanes(trace, seq_id, first, last)
    most = (MAX_WIDTH - 2 * MARGIN - NAMES) // NARROWEST
    num = len(model.positions)
    check(num <= most, "last", last, f"a step up to which {most} positions are drafted, not {num}")
    return finish(_drawing(model, decode), _text(model, decode), title, mark)


def _drawing(model: DraftLanes, decode: Decode) -> Drawing:
    positions = model.positions
    chip = min(WIDEST, (MAX_WIDTH - 2 * MARGIN - NAMES) // len(positions))
    right = MARGIN + NAMES + chip * len(positions)
    strip = HEADER_HEIGHT + 14 + LANE * len(model.lanes)
    bottom = strip + 2 * CHIP_HEIGHT + 20
    alt = f"{model.title}: {model.facts}."
    drawing = sheet(
        model.title, model.facts, alt, right=right, bottom=bottom, legend=_legend(model)
    )

    def x(position: int) -> float:
        return MARGIN + NAMES + chip * (position - positions.start)

    with drawing.group(fill=GREY, font_size=11, text_anchor="middle"):
        drawing.text(MARGIN + NAMES - 34, HEADER_HEIGHT + 8, "position")
        for position in positions:
            drawing.text(x(position) + chip / 2, HEADER_HEIGHT + 8, position)
    for index, lane in enumerate(model.lanes):
        _draw_lane(
            drawing, lane, y=HEADER_HEIGHT + 16 + LANE * index, x=x, chip=chip, decode=decode
        )
    _draw_slots(drawing, model, strip + 4, x, chip)
    return drawing


def _draw_lane(
    drawing: Drawing, lane: DraftLane, y: float, x: Callable[[int], float], chip: float,
    decode: Decode,
) -> None:  # fmt: skip
    drawing.text(MARGIN, y + 14, f"step {lane.step}", font_weight="bold")
    with drawing.group(fill=GREY, font_size=11, text_anchor="end"):
        drawing.text(MARGIN + NAMES - 6, y + 14, "in")
        drawing.text(MARGIN + NAMES - 6, y + 14 + CHIP_HEIGHT, "out")
    upper = [(lane.token, "known")]
    upper += [
        (token, "accepted" if i < lane.num_accepted else "rejected")
        for i, token in enumerate(lane.drafts)
    ]
    lower = [
        (token, "accepted" if i < lane.num_accepted else "drawn")
        for i, token in enumerate(lane.sampled)
    ]
    for row, start, tokens in ((0, lane.position, upper), (1, lane.position + 1, lower)):
        for i, (token, kind) in enumerate(tokens):
            left, top = x(start + i), y + row * CHIP_HEIGHT
            drawing.rect(left + 1, top + 1, chip - 2, CHIP_HEIGHT - 2, rx=2, **LOOKS[kind])
            drawing.place((lane.step, start + i), left, y, chip, 2 * CHIP_HEIGHT)
            if kind == "rejected":
                drawing.hatch(left + 1, top + 1, chip - 2, CHIP_HEIGHT - 2)
            label = token_label(token, decode, max(1, int((chip - 4) / (11 * MONO_EM))))
            drawing.text(
                left + chip / 2, top + 14, label, chip - 4, kind == "rejected", font_size=11,
                font_family=MONO, text_anchor="middle",
            )  # fmt: skip


def _draw_slots(
    drawing: Drawing, model: DraftLanes, y: float, x: Callable[[int], float], chip: float
) -> None:
    """A box for each position: how often it was written; blocks by thick lines and their ids."""
    drawing.text(MARGIN, y + 14, "slots", font_weight="bold")
    drawing.text(MARGIN, y + 34, "block", fill=GREY, font_size=11)
    size = model.block_size
    for position in model.positions:
        if position >= len(model.block_ids) * size:
            continue
        left = x(position) + 1
        times = model.num_writes[position]
        right = position < model.num_right
        fill = LOOKS["known"]["fill"] if times and right else PAPER
        drawing.rect(left, y + 1, chip - 2, CHIP_HEIGHT - 2, fill=fill, stroke=LINE)
        if times and not right:
            drawing.hatch(left, y + 1, chip - 2, CHIP_HEIGHT - 2)
        if times:
            middle = {"font_size": 11, "text_anchor": "middle"}
            drawing.text(x(position) + chip / 2, y + 15, f"{times}×", halo=True, **middle)
        first = position == model.positions.start
        if position % size == 0:
            drawing.path(f"M{x(position):g} {y - 4}v{CHIP_HEIGHT + 20}", stroke=INK, stroke_width=2)
        if first or position % size == 0:
            block_id = model.block_ids[position // size]
            drawing.text(x(position) + 5, y + 34, block_id, fill=GREY, font_size=11)


def _legend(model: DraftLanes) -> list[tuple[Swatch, str]]:
    kinds = {"known", "drawn"}
    kinds |= {"accepted" for lane in model.lanes if lane.num_accepted}
    kinds |= {"rejected" for lane in model.lanes if lane.num_accepted < len(lane.drafts)}
    entries = [
        (box_swatch(kind == "rejected", **LOOKS[kind]), text)
        for kind, text in MEANINGS.items()
        if kind in kinds
    ]
    text = "slot: how often it was written"
    return [*entries, (box_swatch(**LOOKS["known"]), text + "; hatched: last by a rejected draft")]


def _text(model: DraftLanes, decode: Decode) -> str:
    def name(token: int) -> str:
        return token_label(token, decode, 12)

    lines = [model.title, model.facts, ""]
    for lane in model.lanes:
        drafts = [
            f"{name(token)}{'✓' if i < lane.num_accepted else '✗'}"
            for i, token in enumerate(lane.drafts)
        ]
        told = f"step {lane.step:3}  {name(lane.token)}"
        told += f" | {' '.join(drafts)}" if drafts else ""
        if len(lane.sampled) > lane.num_accepted:
            told += f" -> {name(lane.sampled[-1])}"
        lines.append(shorten(told, 96))
    writes = [f"{model.num_writes[p]}" for p in model.positions if model.num_writes[p]]
    lines += ["", shorten(f"writes of slots from position {model.positions.start}: "
                          f"{' '.join(writes)}", 96)]  # fmt: skip
    return "\n".join(lines)
