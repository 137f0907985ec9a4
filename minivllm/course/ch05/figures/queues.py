"""The queues: what runs, what is on the host and what waits, step by step, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minivllm.lab.translation import translated
from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import MARGIN, NOBODY, Swatch, box_swatch, sheet
from minivllm.lab.viz.draw.palette import GREY, INK, LINE, PAPER, Owner, owners_of
from minivllm.lab.viz.draw.step_axis import LANE_HEIGHT, TOP, StepAxis
from minivllm.lab.viz.draw.svg import Drawing
from minivllm.lab.viz.draw.wording import TERMINAL, count, pad, shorten, sparkline
from minivllm.lab.viz.figures.timeline_rows import cross_swatch, draw_cross
from minivllm.trace import Trace
from minivllm.trace.records import Preempted, StepPlanned, SwappedOut
from minivllm.utils.math_utils import cdiv
from minivllm.utils.validation import check

MAX_CHIPS = 12  # in a column; longer queues are drawn as areas
MAX_STEPS = 28  # more are drawn as areas, too
MAX_LINES = 40  # of text; of more steps there are levels
CHIP_HEIGHT = 18
AREA_HEIGHT = 150
LANE_GAP = 18
NAMES = ("running", "swapped", "waiting")  # from the bottom up


@dataclass(frozen=True)
class Moment:
    """The queues right after ``schedule()``, each in its own order."""

    running: list[str]  # sequences, the first admitted first
    swapped: list[str]  # sequences on the host
    waiting: list[str]  # requests, the next one first
    preempted: list[str]  # sequences that gave way in this step
    num_blocks: int

    @property
    def size(self) -> int:
        return len(self.running) + len(self.swapped) + len(self.waiting)


@dataclass(frozen=True)
class Queues:
    """All moments of a trace, and what to say about them."""

    moments: list[Moment]
    owners: dict[str, Owner]
    num_usable_blocks: int

    title = "Queues"

    @property
    def peaks(self) -> dict[str, int]:
        return {name: max(len(getattr(m, name)) for m in self.moments) for name in NAMES}

    @property
    def num_preemptions(self) -> int:
        return sum(len(moment.preempted) for moment in self.moments)

    @property
    def facts(self) -> str:
        peaks = self.peaks
        parts = [count(len(self.moments), "step"), f"at most {peaks['running']} running"]
        if peaks["swapped"]:
            parts.append(f"{peaks['swapped']} swapped out")
        return " · ".join(
            [*parts, f"{peaks['waiting']} waiting", count(self.num_preemptions, "preemption")]
        )

    @property
    def alt(self) -> str:
        said = f"Queues after each schedule: {self.facts.replace(' · ', ', ')}"
        steps = [step for step, moment in enumerate(self.moments) if moment.preempted]
        if 0 < len(steps) <= 12:
            said += f", in step{'s' if len(steps) > 1 else ''} {', '.join(map(str, steps))}"
        return said + "."


def queues(trace: Trace, title: str | None = None, mark: Sequence[Mark] = ()) -> Figure:
    """Draw the running list, the swapped and the waiting queue after every ``schedule()``.

    In a small run each column is a queue of letters: running ones at the bottom in order of
    admission, the swapped above, then the waiting ones (hatched), the next one first; × marks what
    gave way in this step. A long run, or a long queue, shows how many there are of each.

    Args:
        trace: what the engine wrote.
        title, mark: what it shows, and places to point at: (step, text), or (sequence, step, text)
            where there are letters.

    Raises:
        ValueError: for a trace without steps.
    """
    check(trace.num_steps > 0, "trace", trace, "of an engine that has run at least one step")
    model = Queues(_read(trace), owners_of(trace), trace.num_blocks - 1)
    return finish(_drawing(model), _text(model), title, mark)


def _read(trace: Trace) -> list[Moment]:
    state = trace.beginning()
    preempted = []
    moments = []
    for record in trace.records:
        state.apply(record)
        if isinstance(record, (Preempted, SwappedOut)):
            preempted.append(record.seq_id)
        elif isinstance(record, StepPlanned):
            moments.append(
                Moment(
                    running=list(state.running),
                    swapped=list(state.swapped),
                    waiting=list(state.waiting),
                    preempted=preempted,
                    num_blocks=len(state.ref_counts),
                )
            )
            preempted = []
    return moments


# -- drawn ---------------------------------------------------------------------------------------


def _drawing(queues: Queues) -> Drawing:
    axis = StepAxis(0, len(queues.moments) - 1)
    tallest = max(moment.size for moment in queues.moments)
    chips = tallest <= MAX_CHIPS and len(queues.moments) <= MAX_STEPS
    height = (tallest * CHIP_HEIGHT + 12) if chips else AREA_HEIGHT
    lane_top = TOP + height + LANE_GAP
    bottom = lane_top + LANE_HEIGHT + LANE_GAP
    drawing = sheet(
        queues.title,
        queues.facts,
        queues.alt,
        right=axis.right,
        bottom=bottom,
        legend=_legend(queues, chips),
    )
    axis.draw(drawing, lane_top + LANE_HEIGHT)
    draw = _draw_chips if chips else _draw_areas
    draw(drawing, queues, axis, TOP + height)
    for step in range(len(queues.moments)):
        drawing.place((step,), axis.x(step), TOP, axis.cell, height)
    blocks = [moment.num_blocks for moment in queues.moments]
    axis.draw_lane(
        drawing,
        lane_top,
        "blocks",
        limit_name="usable",
        values=blocks,
        limit=queues.num_usable_blocks,
    )
    return drawing


def _draw_chips(drawing: Drawing, queues: Queues, axis: StepAxis, bottom: float) -> None:
    """A column of letters per step, the queue's head at the bottom."""
    with drawing.group(font_size=11, fill=GREY):
        drawing.text(MARGIN, bottom - 5, "first admitted")
        drawing.text(MARGIN, TOP + 14, "last in the queue")
    drawing.path(f"M{axis.x(0):g} {bottom:g}H{axis.right:g}", stroke=LINE)
    with drawing.group(font_size=11, text_anchor="middle"):
        for step, moment in enumerate(queues.moments):
            y = bottom
            for name in NAMES:
                for seq_id in getattr(moment, name):
                    y -= CHIP_HEIGHT
                    owner = queues.owners[seq_id]
                    left = axis.x(step) + 2
                    width = axis.cell - 4
                    height = CHIP_HEIGHT - 2
                    drawing.place((owner.letter, step), left, y + 1, width, height)
                    box = (left, y + 1, width, height)
                    gave_way = seq_id in moment.preempted
                    _draw_chip(drawing, name, owner, box=box, gave_way=gave_way)


def _draw_chip(
    drawing: Drawing, name: str, owner: Owner, box: tuple[float, float, float, float],
    gave_way: bool,
) -> None:  # fmt: skip
    x, y, width, height = box
    drawing.rect(*box, rx=3, **_chip_look(name, owner))
    if name == "waiting":
        drawing.hatch(*box)
        drawing.rect(x + width / 2 - 8, y + 1.5, 16, height - 3, rx=2, fill=PAPER)
    shift = 5 if gave_way else 0
    drawing.text(x + width / 2 - shift, y + 12, owner.letter, fill=owner.edge, font_weight="bold")
    if gave_way:
        draw_cross(drawing, x + width - 6, y + height / 2, 14)


def _draw_areas(drawing: Drawing, queues: Queues, axis: StepAxis, bottom: float) -> None:
    """Draw the number of each, one area on top of the other."""
    tallest = max(moment.size for moment in queues.moments)
    scale = (AREA_HEIGHT - 14) / max(1, tallest)
    with drawing.group(font_size=11, fill=GREY, text_anchor="end"):
        for value in (0, tallest // 2, tallest):
            drawing.text(axis.x(0) - 8, bottom - value * scale + 4, value)
    # The upper areas first: each reaches down to the ground and is covered by those below it.
    for top in reversed(range(len(NAMES))):
        names = NAMES[: top + 1]
        if queues.peaks[names[-1]]:
            values = [sum(len(getattr(m, name)) for name in names) for m in queues.moments]
            d = axis.bars(values, bottom, scale)
            drawing.path(d, **_area_look(names[-1]))
            if names[-1] == "waiting":
                drawing.hatch_path(d)
    _mark_preemptions(drawing, queues, axis, bottom, scale)


def _mark_preemptions(
    drawing: Drawing, queues: Queues, axis: StepAxis, bottom: float, scale: float
) -> None:
    """A × on top of what runs in each step with a preemption."""
    d = ""
    for step, moment in enumerate(queues.moments):
        if moment.preempted:
            y = bottom - len(moment.running) * scale
            d += f"M{axis.x(step + 0.5) - 3:.4g} {y - 3:.4g}l6 6m0-6l-6 6"
    if d:
        drawing.path(d, stroke=PAPER, stroke_width=3.5, fill="none")
        drawing.path(d, stroke=INK, stroke_width=1.6, fill="none")


def _chip_look(name: str, owner: Owner) -> dict[str, str]:
    return {
        "running": {"fill": owner.light, "stroke": owner.edge},
        "swapped": {"fill": PAPER, "stroke": owner.edge, "stroke_dasharray": "4 2"},
        "waiting": {"fill": "#f4f4f4", "stroke": LINE},
    }[name]


def _area_look(name: str) -> dict[str, str]:
    return {
        "running": {"fill": "#56b4e9"},
        "swapped": {"fill": "#f0dce8", "stroke": "#70435c", "stroke_dasharray": "4 2"},
        "waiting": {"fill": "#f4f4f4", "stroke": LINE},
    }[name]


def _legend(queues: Queues, chips: bool) -> list[tuple[Swatch, str]]:
    meanings = {
        "running": "running",
        "swapped": "swapped out to the host",
        "waiting": "waiting",
    }
    entries = []
    for name in filter(queues.peaks.get, meanings):
        look = _chip_look(name, NOBODY) if chips else {**_area_look(name), "rx": 0}
        entries.append((box_swatch(name == "waiting", **look), meanings[name]))
    if queues.num_preemptions:
        entries.append((cross_swatch, "preempted in this step"))
    return entries


# -- in characters -------------------------------------------------------------------------------


def _text(queues: Queues) -> str:
    """Names in each queue of a short run, numbers of a long one."""
    small = len(queues.moments) <= MAX_LINES and max(m.size for m in queues.moments) <= 20
    lines = _lines(queues) if small else _levels(queues)
    legend = "× gave way in this step" if queues.num_preemptions else ""
    title = translated(queues.title)
    return "\n".join([title, queues.facts, "", *lines, *(["", legend] if legend else [])])


def _lines(queues: Queues) -> list[str]:
    lines = []
    for step, moment in enumerate(queues.moments):
        parts = [f"step {step:>{len(str(len(queues.moments) - 1))}}"]
        for name in queues.peaks:
            if queues.peaks[name]:
                letters = (
                    queues.owners[seq_id].letter + ("×" if seq_id in moment.preempted else "")
                    for seq_id in getattr(moment, name)
                )
                room = 4 + 3 * queues.peaks[name]
                parts.append(pad(f"{name} {shorten(' '.join(letters) or '-', 40)}", 8 + room))
        lines.append("  ".join(parts).rstrip())
    return lines


def _levels(queues: Queues) -> list[str]:
    room = TERMINAL - 12
    per_column = cdiv(len(queues.moments), room)
    columns = [
        queues.moments[i : i + per_column] for i in range(0, len(queues.moments), per_column)
    ]
    lines = [f"one column: {per_column} steps"] if per_column > 1 else []
    for name, peak in queues.peaks.items():
        if peak:
            values = [len(getattr(moment, name)) for moment in queues.moments]
            lines.append(pad(name, 10) + sparkline(values, peak, per_column))
            lines.append(f"          peak {peak} (█)")
    marks = "".join("×" if any(m.preempted for m in column) else " " for column in columns)
    lines += ["preempted " + marks] if marks.strip() else []
    return [line.rstrip() for line in lines]
