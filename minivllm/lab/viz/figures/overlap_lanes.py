"""Overlap lanes: the CPU and each device side by side, and tokens until they are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from minivllm.lab.translation import translated
from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import (
    HEADER_HEIGHT,
    MARGIN,
    MAX_WIDTH,
    NOBODY,
    box_swatch,
    sheet,
)
from minivllm.lab.viz.draw.palette import (
    GREY,
    INK,
    LINE,
    ON_DARK,
    ON_LIGHT,
    PAPER,
    Owner,
    owners_of,
)
from minivllm.lab.viz.draw.svg import Drawing, text_width
from minivllm.lab.viz.draw.wording import TERMINAL, count, pad, shorten, wrap
from minivllm.lab.viz.figures.timeline_rows import AHEAD, draw_wasted, wasted_swatch
from minivllm.lab.viz.model.overlap_model import OverlapModel, Part, Token, read_overlap
from minivllm.lab.viz.model.times import CLOCKS
from minivllm.trace import Trace
from minivllm.trace.records import RankWorked
from minivllm.utils.validation import check, is_int

# Sizes in pixels.
NAMES = 76
HEAD = 24  # of a run's name
LANE = 24
TOKENS = 13  # a line of tokens; those in flight together are below each other
GAP = 12
WIDEST = 18  # a unit of the steps' clock
NARROWEST = 5
SHARES = 74  # at the right of a device's lane

MOST_ROWS = 12  # sequences of a run

LOOKS = {
    "plan": {"fill": "#cc79a7", "stroke": "#70425c"},
    "update": {"fill": "#eed3e2", "stroke": "#70425c"},
    "text": {"fill": PAPER, "stroke": "#70425c"},
    "wait": {"fill": PAPER, "stroke": LINE},
    "compute": {"fill": "#009e73", "stroke": "#00573f"},
}
INKS = {"plan": ON_LIGHT, "compute": ON_DARK}
WORDS = {
    "plan": "CPU makes this plan", "update": "takes its tokens over", "text": "makes text of them",
    "compute": "device computes it", "wait": "nothing to do",
}  # fmt: skip
SIGNS = {"plan": "p", "wait": "░", "update": "u", "text": "t", "compute": "█"}


@dataclass(frozen=True)
class _Axis:
    """Place of each time: pixels from the left, and pixels per unit or second."""

    left: float
    scale: float

    def x(self, time: float) -> float:
        return self.left + self.scale * time


@dataclass(frozen=True)
class _Run:
    """One run's lanes."""

    name: str
    model: OverlapModel
    owners: dict[str, Owner]

    @cached_property
    def lines(self) -> dict[str, list[list[Token]]]:
        """By sequence, lines of tokens of which none overlap."""
        lines: dict[str, list[list[Token]]] = {}
        ends: dict[tuple[str, int], float] = {}
        for token in self.model.tokens:
            mine = lines.setdefault(token.seq_id, [])
            free = [i for i in range(len(mine)) if ends[token.seq_id, i] <= token.start]
            line = free[0] if free else len(mine)
            if not free:
                mine.append([])
            mine[line].append(token)
            ends[token.seq_id, line] = self.end_of(token)
        return {seq_id: lines[seq_id] for seq_id in self.owners if seq_id in lines}

    def end_of(self, token: Token) -> float:
        return self.model.end if token.known is None else token.known

    @property
    def height(self) -> float:
        num_lines = sum(map(len, self.lines.values()))
        num_lanes = 1 + len(self.model.devices)
        return HEAD + LANE * num_lanes + TOKENS * num_lines + 4 * len(self.lines) + GAP

    @property
    def facts(self) -> str:
        ahead, of = self.model.planned_ahead
        told = f"{ahead} of {count(of, 'plan')} made while the one before was computed"
        parts = [told] if of else ["no plan right behind another one"]
        if wasted := self.model.num_wasted:
            parts.append(f"{count(wasted, 'token')} wasted")
        return translated(", ").join(parts)

    def device(self, rank: int) -> str:
        return "device" if len(self.model.devices) == 1 else f"rank {rank}"


def overlap_lanes(
    runs: Mapping[str, Trace], first: int | None = None, last: int | None = None,
    clock: str = "steps", title: str | None = None, mark: Sequence[Mark] = (),
) -> Figure:  # fmt: skip
    """Draw runs as a lane of the CPU and one for each device, all on one axis of time.

    The number in a box is that of its plan: the call of the engine that made it. Below are the
    tokens of each sequence: dotted from their plan on until they are known, crossed out if the
    sequence had ended by then. The share at the right of a device is the time in which it waits
    between its first plan and its last.

    Args:
        runs: what the engines wrote, by the name of the run.
        first, last: calls that are drawn, both included; None is the first and the last.
        clock: "steps" draws what the records say in equal units, the same on every machine: one
            for a plan, an update and the text, four for a device; "seconds" as it was measured:
            then the tokens' way back belongs to the update, and whatever the caller does between
            two calls to the text.
        title, mark: what it shows, and plans to point at: (run, "CPU", "device" or "rank 1",
            number of the plan, text).

    Raises:
        ValueError: if there is no run, for calls that one does not have, more than fit, another
            clock, or seconds of a trace without the devices' records: they are in those of
            ``async_scheduling=True`` and of ranks in other processes.
    """
    check(clock in CLOCKS, "clock", clock, "'steps' or 'seconds'")
    check(len(runs) > 0, "runs", runs, "at least one")
    read = [_read(name, trace, first, last, clock) for name, trace in runs.items()]
    head = "Lanes of the CPU and the device"
    unit = "a plan, an update and its text a unit each, the device four"
    if clock == "seconds":
        unit = f"{1000 * max(run.model.end for run in read):,.4g} ms as measured"
    facts = f"time from left to right: {unit}"
    alt = f"{head}. {' '.join(map(_told, read))}"
    return finish(_drawing(read, clock, (head, facts, alt)), _text(read, clock, head), title, mark)


def _read(name: str, trace: Trace, first: int | None, last: int | None, clock: str) -> _Run:
    check(trace.num_steps > 0, "runs", name, "traces of engines that have run at least one step")
    begin, end = trace.first_step, trace.num_steps - 1
    first = begin if first is None else first
    last = end if last is None else min(last, end)
    allowed = f"calls of {name!r}, first and last, from {begin} to {end}"
    ok = is_int(first, begin) and is_int(last, begin) and first <= last
    check(ok, "first and last", (first, last), allowed)
    if clock == "seconds":
        there = any(trace.of(RankWorked))
        check(there, "clock", clock, f"'steps' for {name!r}, without a device's records of its own")
    model = read_overlap(trace, first, last, clock)
    run = _Run(name, model, owners_of(trace))
    room = MAX_WIDTH - 2 * MARGIN - NAMES - SHARES
    fits = clock == "seconds" or model.end * NARROWEST <= room
    check(fits, "last", last, f"a call nearer to the first: {name!r} does not fit into one picture")
    check(len(run.lines) <= MOST_ROWS, "runs", name, f"runs of at most {MOST_ROWS} sequences")
    return run


def _told(run: _Run) -> str:
    idle = ", ".join(
        f"{run.device(rank)} idle {run.model.idle_share(rank):.0%}" for rank in run.model.devices
    )
    return f"{run.name}: {run.facts}; {idle}."


# -- drawn ---------------------------------------------------------------------------------------


def _drawing(runs: list[_Run], clock: str, words: tuple[str, str, str]) -> Drawing:
    left = MARGIN + NAMES
    longest = max(run.model.end for run in runs)
    room = MAX_WIDTH - MARGIN - left - SHARES
    scale = room / max(longest, 1e-9)
    scale = min(WIDEST, int(scale)) if clock == "steps" else scale
    heads = [text_width(run.name, bold=True) + text_width(run.facts) + 16 for run in runs]
    right = max(left + scale * longest + SHARES, *(MARGIN + head for head in heads))
    bottom = HEADER_HEIGHT + sum(run.height for run in runs)
    kinds = {p.kind for run in runs for p in run.model.cpu} | {"compute", "wait"}
    legend = [
        (box_swatch(kind == "wait", **LOOKS[kind]), text)
        for kind, text in WORDS.items()
        if kind in kinds
    ]
    legend.append((box_swatch(fill=PAPER, stroke=NOBODY.edge, **AHEAD), "token on its way"))
    legend.append((box_swatch(fill=NOBODY.light, stroke=NOBODY.edge), "known"))
    if any(run.model.num_wasted for run in runs):
        legend.append((wasted_swatch, "wasted"))
    drawing = sheet(*words, right, bottom, legend)
    y = float(HEADER_HEIGHT)
    for run in runs:
        _draw_run(drawing, run, _Axis(left, scale), y)
        y += run.height
    return drawing


def _draw_run(drawing: Drawing, run: _Run, axis: _Axis, y: float) -> None:
    drawing.text(MARGIN, y + 15, run.name, font_weight="bold")
    x = MARGIN + text_width(run.name, bold=True) + 12
    drawing.text(x, y + 15, run.facts, fill=GREY)
    y += HEAD
    end = axis.x(run.model.end)
    lanes = [("CPU", run.model.cpu)]
    lanes += [(run.device(rank), parts) for rank, parts in run.model.devices.items()]
    for name, parts in lanes:
        drawing.text(MARGIN, y + 16, name, font_weight="bold")
        drawing.hatch(axis.left, y + 3, end - axis.left, LANE - 6)
        for part in parts:
            _draw_part(drawing, part, axis, y=y, lane=(run.name, name))
        y += LANE
    y -= LANE * len(run.model.devices)
    for rank in run.model.devices:
        drawing.text(end + 6, y + 16, f"{run.model.idle_share(rank):.0%} idle", fill=GREY)
        y += LANE
    for seq_id, lines in run.lines.items():
        owner = run.owners[seq_id]
        y += 4
        middle = y + TOKENS * len(lines) / 2
        bold = {"fill": owner.edge, "font_weight": "bold"}
        drawing.text(MARGIN, middle + 4, owner.letter, NAMES - 8, **bold)
        for tokens in lines:
            for token in tokens:
                _draw_token(drawing, run, token, axis, y=y)
            y += TOKENS


def _draw_part(drawing: Drawing, part: Part, axis: _Axis, y: float, lane: tuple[str, str]) -> None:
    if part.kind == "wait":
        return  # as the paper below is hatched
    x = axis.x(part.start)
    width = axis.x(part.end) - x
    gap = min(0.5, width / 8)
    tooltip = f"{WORDS[part.kind]}: plan {part.plan}"
    look = {"rx": 1.5, "stroke_width": 0.8, **LOOKS[part.kind]}
    drawing.rect(x + gap, y + 3, max(width - 2 * gap, 0.4), LANE - 6, tooltip, **look)
    if part.kind in ("plan", "compute"):
        drawing.place((*lane, part.plan), x, y + 3, max(width, 1.0), LANE - 6)
    if part.kind != "text" and text_width(str(part.plan), 11) + 2 <= width:
        ink = INKS.get(part.kind, INK)
        middle = {"text_anchor": "middle", "font_size": 11, "fill": ink}
        drawing.text(x + width / 2, y + 16, part.plan, **middle)


def _draw_token(drawing: Drawing, run: _Run, token: Token, axis: _Axis, y: float) -> None:
    owner = run.owners[token.seq_id]
    x = axis.x(token.start)
    end = axis.x(run.end_of(token))
    told = f"{owner.letter}: token of plan {token.plan}"
    size = 9.0  # of the box of a token that is known
    way = max(end - x - (0 if token.known is None else size), 0.4)
    dotted = {"fill": PAPER, "stroke": owner.edge, "stroke_width": 1, **AHEAD}
    drawing.rect(x + 0.5, y + 2, way, TOKENS - 4, f"{told}, on its way", **dotted)
    if token.is_wasted:
        draw_wasted(drawing, (x + 0.5, y + 2, end - x - 1, TOKENS - 4), f"{told}, wasted")
    elif token.known is not None:
        look = {"fill": owner.light, "stroke": owner.edge, "rx": 1.5}
        drawing.rect(end - size, y + 1.5, size, TOKENS - 3, f"{told}, known", **look)


# -- in characters -------------------------------------------------------------------------------


def _text(runs: list[_Run], clock: str, head: str) -> str:
    lines = [head]
    for run in runs:
        lines += ["", *wrap(_told(run), TERMINAL)]
        if clock == "steps":
            lines += _characters(run)
    if clock == "steps":
        signs = [f"{SIGNS[kind]} {WORDS[kind]}" for kind in ("plan", "update", "text", "wait")]
        lines += ["", "  ".join(signs)]
        lines.append("digit: device computes this plan  · token on its way  • known  / wasted")
    return "\n".join(lines)


def _characters(run: _Run) -> list[str]:
    """A column for each unit; of a long run, several stretches below each other."""
    columns = round(run.model.end)
    rows = {"CPU": ["░"] * columns}
    for part in run.model.cpu:
        _fill(rows["CPU"], part.start, part.end, SIGNS[part.kind])
    for rank, parts in run.model.devices.items():
        lane = rows[run.device(rank)] = ["░"] * columns
        for part in parts:
            _fill(lane, part.start, part.end, str(part.plan % 10))
    for seq_id, of_sequence in run.lines.items():
        tokens = [token for line in of_sequence for token in line]
        row = rows[run.owners[seq_id].letter] = [" "] * columns
        for token in tokens:
            _fill(row, token.start, run.end_of(token), "·")
        for token in tokens:
            last = round(run.end_of(token)) - 1
            if token.is_wasted:
                row[last] = "/"
            elif token.known is not None:
                row[last] = "•"
    lines = []
    room = TERMINAL - 9
    for start in range(0, columns, room):
        lines += [""] if start else []
        for name, row in rows.items():
            lines.append(f"{pad(shorten(name, 8), 9)}{''.join(row[start : start + room])}".rstrip())
    return lines


def _fill(row: list[str], start: float, end: float, sign: str) -> None:
    for column in range(round(start), round(end)):
        row[column] = sign
