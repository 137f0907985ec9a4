"""Lanes: what the same requests went through in several runs, on one axis of steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import MARGIN, NOBODY, box_swatch, sheet
from minivllm.lab.viz.draw.palette import GREY, INK, LINE, PAPER, Owner, owners_of
from minivllm.lab.viz.draw.step_axis import TOP, StepAxis, draw_name
from minivllm.lab.viz.draw.svg import Drawing
from minivllm.lab.viz.draw.wording import count, pad
from minivllm.trace import Trace
from minivllm.trace.records import (
    RequestAdded,
    Sampled,
    Scheduled,
    TransferEnded,
    TransferStarted,
)
from minivllm.utils.validation import check

ROW = 22  # height of a lane
HEAD = 22  # of a run's name
GAP = 10  # below a run
MOST_LANES = 24  # of a run; a crowd is for ``timeline``
MOST_STEPS = 90
KINDS = {"waiting": "░", "receiving": "↓", "prefill": "█", "decode": "•"}
LOOKS = {
    "waiting": "waits", "receiving": "K and V come", "prefill": "prefill", "decode": "decode",
}  # fmt: skip


@dataclass(frozen=True)
class Lane:
    """One request: the step in which it could first have run, and what each one did for it."""

    owner: Owner
    arrival: int
    kinds: dict[int, str]  # by step, of those that computed something for it
    first_token: int

    @property
    def last(self) -> int:
        return max(self.kinds)

    @property
    def ttft(self) -> int:
        """Steps from its arrival to its first token, both included."""
        return self.first_token - self.arrival + 1

    def spans(self) -> Iterator[tuple[str, int, int]]:
        """Kind, first and last step of each stretch."""
        steps = range(self.arrival, self.last + 1)
        for kind, group in groupby(steps, lambda step: self.kinds.get(step, "waiting")):
            stretch = list(group)
            yield kind, stretch[0], stretch[-1]


@dataclass(frozen=True)
class Run:
    """All lanes of a run."""

    name: str
    lanes: list[Lane]

    @cached_property
    def last(self) -> int:
        return max(lane.last for lane in self.lanes)

    @property
    def facts(self) -> str:
        waits = ", ".join(str(lane.ttft) for lane in self.lanes)
        return f"{count(self.last + 1, 'step')}, TTFT {waits}"


def lanes(
    runs: Mapping[str, Trace], arrivals: Mapping[str, int] | None = None, title: str | None = None,
    mark: Sequence[Mark] = (),
) -> Figure:  # fmt: skip
    """Draw the same requests under several rules, one below the other, as wide as the longest run.

    Hatched is a request that waits, full colour computes its prompt, light colour its tokens one by
    one; a bar is its end. Dotted is one whose K and V come from another engine.

    Args:
        runs: what the engine wrote, by the rule's name.
        arrivals: the step in which a request really came, by its id, where the engine has seen it
            later: it may have waited before the engine's queue.
        title, mark: what it shows, and steps to point at: (run, request, step, text).

    Raises:
        ValueError: if there is no run, one without a token, or one with more than 24 requests or
            90 steps.
    """
    check(len(runs) > 0, "runs", runs, "at least one")
    read = [_read(name, trace, arrivals or {}) for name, trace in runs.items()]
    alt = f"Lanes of requests. {'; '.join(f'{run.name}: {run.facts}' for run in read)}."
    return finish(_drawing(read, alt), _text(read), title, mark)


def _read(name: str, trace: Trace, arrivals: Mapping[str, int]) -> Run:
    owners = owners_of(trace)
    came = {}
    kinds: dict[str, dict[int, str]] = {}
    first: dict[str, int] = {}
    since: dict[str, int] = {}  # when a transfer to each began
    for record in trace.of(RequestAdded, Scheduled, Sampled, TransferStarted, TransferEnded):
        match record:
            case RequestAdded(step, request_id):
                came[request_id] = arrivals.get(request_id, step + 1)
            case Scheduled(step, seq_id, kind):
                decodes = seq_id in first and kind != "resumed"  # else it is computed again
                kinds.setdefault(seq_id, {})[step] = "decode" if decodes else "prefill"
            case Sampled(step, seq_id):
                first.setdefault(seq_id, step)
            case TransferStarted(step, seq_id, "recv"):
                since[seq_id] = step
            case TransferEnded(step, seq_id, "recv") if seq_id in since:
                steps = range(since.pop(seq_id), step + 1)
                kinds.setdefault(seq_id, {}).update(dict.fromkeys(steps, "receiving"))
    found = [
        Lane(owners[seq_id], came[seq_id], kinds[seq_id], first[seq_id])
        for seq_id in came
        if seq_id in first
    ]
    ok = 0 < len(found) <= MOST_LANES and trace.num_steps <= MOST_STEPS
    what = f"1 to {MOST_LANES} requests with a token, and at most {MOST_STEPS} steps"
    check(ok, f"runs[{name!r}]", trace, what)
    return Run(name, found)


def _drawing(runs: list[Run], alt: str) -> Drawing:
    axis = StepAxis(0, max(run.last for run in runs))
    title = "Lanes"
    most = max(len(run.lanes) for run in runs)
    facts = f"{count(len(runs), 'run')} of {count(most, 'request')} · a black bar is the end of one"
    heights = [HEAD + ROW * len(run.lanes) + GAP for run in runs]
    bottom = TOP + sum(heights)
    used = {kind for run in runs for lane in run.lanes for kind, _, _ in lane.spans()}
    legend = [
        (box_swatch(kind == "waiting", **_look(kind, NOBODY)), text)
        for kind, text in LOOKS.items()
        if kind in used
    ]
    drawing = sheet(title, facts, alt, right=axis.right, bottom=bottom, legend=legend)
    axis.draw(drawing, bottom - GAP)
    y = TOP
    for run, height in zip(runs, heights, strict=True):
        drawing.text(MARGIN, y + 15, run.name, font_weight="bold")
        drawing.text(axis.x(0), y + 15, run.facts, fill=GREY)
        for row, lane in enumerate(run.lanes):
            _draw_lane(drawing, lane, axis, y + HEAD + row * ROW)
            for step in range(lane.arrival, lane.last + 1):
                key = (run.name, lane.owner.letter, step)
                drawing.place(key, axis.x(step), y + HEAD + row * ROW, axis.cell, ROW)
        y += height
        drawing.path(f"M{MARGIN:g} {y - GAP / 2:g}H{axis.right:g}", stroke=LINE)
    return drawing


def _draw_lane(drawing: Drawing, lane: Lane, axis: StepAxis, y: float) -> None:
    owner = lane.owner
    draw_name(drawing, owner, y + 16, 13)
    for kind, start, last in lane.spans():
        left = axis.x(start) + 1
        width = axis.x(last + 1) - axis.x(start) - 2
        steps = f"step {start}" if start == last else f"steps {start} to {last}"
        tooltip = f"{owner.letter}, {steps}: {LOOKS[kind]}"
        drawing.rect(left, y + 2, width, ROW - 4, tooltip, rx=2, **_look(kind, owner))
        if kind == "waiting":
            drawing.hatch(left, y + 2, width, ROW - 4)
    drawing.rect(axis.x(lane.last + 1) - 4, y, 4, ROW, f"{owner.letter} is done", fill=INK)


def _look(kind: str, owner: Owner) -> dict[str, str]:
    return {
        "waiting": {"fill": PAPER, "stroke": LINE},
        "receiving": {"fill": PAPER, "stroke": owner.edge, "stroke_dasharray": "1.5 2"},
        "prefill": {"fill": owner.solid, "stroke": owner.edge},
        "decode": {"fill": owner.light, "stroke": owner.edge},
    }[kind]


def _text(runs: list[Run]) -> str:
    lines = ["Lanes"]
    for run in runs:
        lines += ["", f"{run.name}: {run.facts}"]
        for lane in run.lanes:
            cells = " " * lane.arrival
            for kind, start, last in lane.spans():
                cells += KINDS[kind] * (last - start + 1)
            name = pad(lane.owner.name(13), 16)
            lines.append(f"{name}{cells}|")
    used = {kind for run in runs for lane in run.lanes for kind, _, _ in lane.spans()}
    signs = [f"{sign} {LOOKS[kind]}" for kind, sign in KINDS.items() if kind in used]
    return "\n".join([*lines, "", "one column: a step  " + "  ".join([*signs, "| its end"])])
