"""timeline_data: steps of a run as JSON that ``timeline.js`` draws, as wide as the window is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from minivllm.lab.viz.model.timeline_model import Cell, TimelineWindow

KINDS = {
    "prefill": "p", "decode": "d", "verify": "v", "waiting": "w", "idle": "i", "receiving": "r",
    "sending": "s", "": ".",
}  # fmt: skip
EMPTY = Cell()
PLANNED = "o"  # a decode that was planned before its token was known


def timeline_to_json(
    window: TimelineWindow,
    rows: Iterable[Mapping[int, Cell]],
    milliseconds: list[float] | None = None,
) -> dict[str, Any]:
    """Steps of a run.

    Args:
        window: all steps of a run, or the last ones of a run that goes on.
        rows: cells of each sequence in these steps, by step; in order of arrival.
        milliseconds: of each step; None if its times say nothing.

    Returns: "first", the number of the first step, and "steps", how many; "ms", of each step, or
        None; "lanes" (name, name of the limit, a value for each step, the limit); and "rows", one
        for each sequence: the first step, a letter of ``KINDS`` for each step from there on, the
        tokens of its prefills and the drafts accepted one after the other, the steps in which it
        was preempted, those in which it ended, and by name those of rarer events.
    """
    lanes = [list(lane) for lane in window.lanes]
    lanes += [[lane.name, lane.limit_name, lane.values, lane.limit] for lane in window.item_lanes]
    if window.num_drafts:
        drafts = [step.num_drafts for step in window.steps]
        lanes.append(["drafts", "most", drafts, max(drafts)])
    return {
        "first": window.first,
        "steps": len(window.steps),
        "ms": milliseconds and [round(each, 3) for each in milliseconds],
        "lanes": lanes,
        "rows": [_row(cells) for cells in rows],
    }


def _row(cells: Mapping[int, Cell]) -> list[Any]:
    first = min(cells, default=0)
    row = [cells.get(step, EMPTY) for step in range(first, max(cells, default=-1) + 1)]
    numbers = {"prefill": lambda cell: cell.num_tokens, "verify": lambda cell: cell.num_accepted}
    rarer = {
        "dropped": [step for step, cell in enumerate(row, first) if cell.dropped],
        "wasted": [step for step, cell in enumerate(row, first) if cell.is_wasted],
    }
    return [
        first,
        "".join(PLANNED if cell.is_placeholder else KINDS[cell.kind] for cell in row),
        [numbers[cell.kind](cell) for cell in row if cell.kind in numbers],
        [step for step, cell in enumerate(row, first) if cell.preempted],
        [step for step, cell in enumerate(row, first) if cell.finished],
        {name: steps for name, steps in rarer.items() if steps},
    ]
