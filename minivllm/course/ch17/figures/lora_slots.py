"""LoRA slots: which adapter is in which slot, step by step, and which request waits for one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import MARGIN, NOBODY, box_swatch, sheet
from minivllm.lab.viz.draw.palette import GREY, INK, LINE, OKABE_ITO, PAPER, letter
from minivllm.lab.viz.draw.step_axis import TOP, StepAxis
from minivllm.lab.viz.draw.svg import Drawing, text_width
from minivllm.lab.viz.draw.wording import count, pad, span
from minivllm.trace import Trace
from minivllm.trace.records import LoRAEvicted, LoRALoaded, RequestAdded, RequestSkipped, Scheduled
from minivllm.utils.validation import check

ROW = 24
GAP = 14
MOST_ROWS = 24
MOST_STEPS = 60
BASE = ""  # the base model's name among those of adapters
SIGNS = {"waits": "░", "skipped": "s"}
LOOKS = {"waits": {"fill": PAPER, "stroke": LINE}, "skipped": {"fill": "#ffffff", "stroke": INK}}

Stretch = tuple[str, int, int]  # what, its first and its last step


@dataclass
class SlotRun:
    """Adapters of a trace, by step."""

    steps: range
    adapter_of: dict[str, str]  # by request id
    slots: dict[int, dict[int, str]] = field(default_factory=dict)  # by slot, by step: an adapter
    requests: dict[str, dict[int, str]] = field(default_factory=dict)  # "waits", "skipped", "runs"
    loads: set[tuple[int, int]] = field(default_factory=set)  # slot and step

    @property
    def adapters(self) -> list[str]:
        """Names in the order in which their first request came."""
        return list(dict.fromkeys(name for name in self.adapter_of.values() if name != BASE))

    @property
    def kinds(self) -> set[str]:
        """Those of "waits", "skipped" and "runs" that some request has."""
        return {kind for cells in self.requests.values() for kind in cells.values()}

    def stretches(self, cells: dict[int, str], slot: int | None = None) -> list[Stretch]:
        """Neighbours that are alike; a load begins another one."""
        number = 0

        def key(step: int) -> tuple[str, int]:
            nonlocal number
            number += (slot, step) in self.loads
            return cells.get(step, ""), number

        found = [(what, list(steps)) for (what, _), steps in groupby(self.steps, key)]
        return [(what, steps[0], steps[-1]) for what, steps in found if what]


def lora_slots(trace: Trace, title: str | None = None, mark: Sequence[Mark] = ()) -> Figure:
    """Draw the slots of adapters over the steps of a run, and below them its requests.

    An arrow is a load: an adapter is copied into a slot. A request runs in the colour of its
    adapter; it waits, or it is skipped, since its adapter has no slot while others behind it run.

    Args:
        trace: of a run with adapters.
        title, mark: what it shows, and steps to point at: ("slot 0", step, text), or a request's
            id in the place of the slot.

    Raises:
        ValueError: for a trace without an adapter, with more than 24 requests or 60 steps.
    """
    run = _read(trace)
    check(len(run.slots) > 0, "trace", trace, "a run in which an adapter was loaded")
    ok = len(run.requests) <= MOST_ROWS and len(run.steps) <= MOST_STEPS
    check(ok, "trace", trace, f"at most {MOST_ROWS} requests and {MOST_STEPS} steps")
    evictions = len(list(trace.of(LoRAEvicted)))
    facts = (
        f"{count(len(run.slots), 'slot')} · {count(len(run.adapters), 'adapter')} · "
        f"{count(len(run.loads), 'load')}, {count(evictions, 'eviction')}"
    )
    return finish(_drawing(run, facts), _text(run, facts), title, mark)


def _read(trace: Trace) -> SlotRun:
    steps = range(trace.first_step, trace.first_step + trace.num_steps)
    added = list(trace.of(RequestAdded))
    run = SlotRun(steps, {record.request_id: record.lora_name or BASE for record in added})
    run.loads = {(record.slot, record.step) for record in trace.of(LoRALoaded)}
    for slot in range(1 + max((slot for slot, _ in run.loads), default=-1)):
        run.slots[slot] = {}
    for step in steps:
        state = trace.state_at(step, "schedule")
        for slot, name in state.lora_slots.items():
            run.slots[slot][step] = name
        for request_id in state.waiting:
            run.requests.setdefault(request_id, {})[step] = "waits"
    for record in trace.of(RequestSkipped):
        run.requests.setdefault(record.request_id, {})[record.step] = "skipped"
    for record in trace.of(Scheduled):
        run.requests.setdefault(record.seq_id, {})[record.step] = "runs"
    run.requests = {name: run.requests[name] for name in run.adapter_of if name in run.requests}
    return run


def _colour(run: SlotRun, adapter: str) -> str:
    if adapter == BASE:
        return NOBODY.light
    return OKABE_ITO[run.adapters.index(adapter) % len(OKABE_ITO)]


def _drawing(run: SlotRun, facts: str) -> Drawing:
    axis = StepAxis(run.steps[0], run.steps[-1])
    slots_end = TOP + ROW * len(run.slots)
    bottom = slots_end + GAP + ROW * len(run.requests) + 6
    legend = [(box_swatch(fill=NOBODY.solid), "runs, in the colour of its adapter")]
    if "waits" in run.kinds:
        legend.append((box_swatch(hatched=True, **LOOKS["waits"]), "waits"))
    if "skipped" in run.kinds:
        told = "s, skipped: its adapter has no slot"
        legend.append((box_swatch(**LOOKS["skipped"]), told))
    head = "Adapters in slots"
    drawing = sheet(head, facts, _alt(run, facts), right=axis.right, bottom=bottom, legend=legend)
    axis.draw(drawing, bottom - 6)
    for slot, cells in run.slots.items():
        y = TOP + ROW * slot
        name = f"slot {slot}"
        _name(drawing, name, "", y)
        for adapter, first, last in run.stretches(cells, slot):
            loaded = (slot, first) in run.loads
            _span(
                drawing,
                run,
                axis,
                y=y,
                adapter=adapter,
                steps=(first, last),
                label=f"↓ {adapter}" if loaded else "",
            )
        _places(drawing, axis, name, run.steps, y)
    y = slots_end + GAP
    drawing.path(f"M{MARGIN:g} {y - GAP / 2:g}H{axis.right:g}", stroke=LINE)
    for request_id, cells in run.requests.items():
        adapter = run.adapter_of[request_id]
        _name(drawing, request_id, adapter or "base", y)
        for kind, first, last in run.stretches(cells):
            if kind == "runs":
                _span(drawing, run, axis, y=y, adapter=adapter, steps=(first, last), label="")
            else:
                _idle(drawing, axis, y, kind, (first, last))
        _places(drawing, axis, request_id, run.steps, y)
        y += ROW
    return drawing


def _name(drawing: Drawing, name: str, rest: str, y: float) -> None:
    drawing.text(MARGIN, y + 16, name, 56, font_weight="bold")
    if rest:
        drawing.text(MARGIN + 60, y + 16, rest, 62, fill=GREY, font_size=11)


def _places(drawing: Drawing, axis: StepAxis, name: str, steps: range, y: float) -> None:
    for step in steps:
        drawing.place((name, step), axis.x(step), y, axis.cell, ROW)


def _box(axis: StepAxis, y: float, steps: tuple[int, int]) -> tuple[float, float, float, float]:
    left, right = axis.x(steps[0]), axis.x(steps[1] + 1)
    return left + 1, y + 3, right - left - 2, ROW - 6


def _span(
    drawing: Drawing, run: SlotRun, axis: StepAxis, y: float, adapter: str,
    steps: tuple[int, int], label: str,
) -> None:  # fmt: skip
    """A stretch in the colour of an adapter, with its name upon paper where there is room."""
    box = _box(axis, y, steps)
    tooltip = f"{adapter or 'base'}, {_steps(*steps)}"
    drawing.rect(*box, tooltip, rx=2, fill=_colour(run, adapter), stroke=INK)
    if label:
        wide = min(text_width(label, 11), box[2] - 6)
        drawing.rect(box[0] + 2, y + 5, wide + 2, ROW - 10, rx=2, fill=PAPER)
        drawing.text(box[0] + 3, y + 16, label, wide, font_size=11)


def _idle(drawing: Drawing, axis: StepAxis, y: float, kind: str, steps: tuple[int, int]) -> None:
    box = _box(axis, y, steps)
    drawing.rect(*box, f"{kind}, {_steps(*steps)}", rx=2, **LOOKS[kind])
    if kind == "waits":
        drawing.hatch(*box)
    else:
        label = "skipped" if steps[1] > steps[0] else "s"
        drawing.text(box[0] + 3, y + 16, label, box[2] - 6, font_size=11)


def _steps(first: int, last: int) -> str:
    return f"step{'s' if last > first else ''} {span(first, last)}"


def _alt(run: SlotRun, facts: str) -> str:
    lines = [
        f"slot {slot}: "
        + ", ".join(f"{name} {_steps(*steps)}" for name, *steps in run.stretches(cells, slot))
        for slot, cells in run.slots.items()
    ]
    lines += [
        f"{name} ({run.adapter_of[name] or 'base'}) "
        + ", ".join(f"{kind} {_steps(*steps)}" for kind, *steps in run.stretches(cells))
        for name, cells in run.requests.items()
    ]
    return f"Adapters in slots, {facts}. {'; '.join(lines)}."


def _text(run: SlotRun, facts: str) -> str:
    """Lines for a terminal: a letter is an adapter, a capital the step of its load."""
    letters = {name: letter(index).lower() for index, name in enumerate(run.adapters)}
    letters[BASE] = "•"
    lines = ["Adapters in slots", facts, ""]
    for slot, cells in run.slots.items():
        signs = "".join(
            letters[cells[step]].upper() if (slot, step) in run.loads
            else letters[cells[step]] if step in cells else " "
            for step in run.steps
        )  # fmt: skip
        lines.append(f"{pad(f'slot {slot}', 22)}{signs}".rstrip())
    lines.append("")
    for name, cells in run.requests.items():
        own = letters[run.adapter_of[name]]
        signs = "".join(SIGNS.get(cells[s], own) if s in cells else " " for s in run.steps)
        lines.append(f"{pad(f'{name} {run.adapter_of[name]}', 22)}{signs}".rstrip())
    told = [f"{letters[name]} {name}" for name in run.adapters] + ["capital: loaded"]
    told += ["• base"] if BASE in run.adapter_of.values() else []
    told += [f"{sign} {kind}" for kind, sign in SIGNS.items() if kind in run.kinds]
    return "\n".join([*lines, "", "  ".join(told)])
