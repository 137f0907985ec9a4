"""Held blocks: how many blocks each group's tables hold, step by step, and how many they may."""

from __future__ import annotations

from collections.abc import Sequence

from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import sheet
from minivllm.lab.viz.draw.step_axis import LANE_HEIGHT, TOP, StepAxis
from minivllm.lab.viz.draw.wording import TERMINAL, pad, sparkline
from minivllm.trace import Trace
from minivllm.trace.groups import group_labels
from minivllm.trace.records import StepPlanned
from minivllm.utils.math_utils import cdiv
from minivllm.utils.validation import check

LANE_GAP = 18


def held_blocks(
    trace: Trace, most: Sequence[int], title: str | None = None, mark: Sequence[Mark] = ()
) -> Figure:
    """Draw the blocks that tables of each KV cache group hold after each step's planning.

    Each group has a scale of its own.

    Args:
        trace: of a run with groups.
        most: for each group, the blocks that it may hold: a line.
        title, mark: what it shows, and places to point at: (group's name, step, text).

    Raises:
        ValueError: for a trace without steps or groups, or another number of lines.
    """
    check(trace.num_steps > 0, "trace", trace, "of an engine that has run at least one step")
    names = [label.name for label in group_labels(trace.groups)]
    check(names, "trace", trace, "of a model with several KV cache groups")
    check(len(most) == len(names), "most", most, f"{len(names)} numbers, one a group")
    held = _held(trace)
    lanes = [(name, [step[i] for step in held], most[i]) for i, name in enumerate(names)]
    head = "Blocks held by each group"
    facts = f"{len(held)} steps · dashed: the most that it may hold"
    told = "; ".join(
        f"{name}: at most {max(values)} of {limit}, {values[-1]} in the last step"
        for name, values, limit in lanes
    )
    axis = StepAxis(trace.first_step, trace.first_step + len(held) - 1)
    bottom = TOP + len(lanes) * (LANE_HEIGHT + LANE_GAP)
    drawing = sheet(head, facts, f"{head}: {told}.", right=axis.right, bottom=bottom)
    axis.draw(drawing, bottom - LANE_GAP)
    for i, (name, values, limit) in enumerate(lanes):
        y = TOP + i * (LANE_HEIGHT + LANE_GAP)
        axis.draw_lane(drawing, y, name, "at most", values, limit=limit)
    return finish(drawing, _text(lanes, head, facts), title, mark)


def _held(trace: Trace) -> list[list[int]]:
    """For each step, the blocks that each group holds after it is planned."""
    state = trace.beginning()
    held = []
    for record in trace.records:
        state.apply(record)
        if isinstance(record, StepPlanned):
            held.append(state.num_held_by_group)
    return held


def _text(lanes, head: str, facts: str) -> str:
    width = max(len(name) for name, _, _ in lanes) + 2
    per_column = cdiv(len(lanes[0][1]), TERMINAL - width)
    lines = [head, facts]
    for name, values, limit in lanes:
        line = sparkline(values, max(values), per_column)
        lines.append(f"{pad(name, width)}{line}  peak {max(values)} (█), at most {limit}")
    return "\n".join(lines)
