"""timeline_data: a run's timeline as JSON that ``timeline.js`` draws, as wide as the window is."""

from __future__ import annotations

from typing import Any

from minivllm.lab.viz.model.timeline_model import Cell, History, TimelineWindow

KINDS = {
    "prefill": "p", "decode": "d", "verify": "v", "waiting": "w", "idle": "i", "receiving": "r",
    "sending": "s", "": ".",
}  # fmt: skip


def timeline_to_json(history: History, milliseconds: list[float] | None) -> dict[str, Any]:
    """A run's timeline from its first step.

    Args:
        history: of a whole run.
        milliseconds: of each step; None if its times say nothing.

    Returns: "steps", how many; "ms", of each step, or None; "lanes" (name, name of the limit, a
        value for each step, the limit); and "rows", one for each sequence in order of arrival: the
        first step, a letter of ``KINDS`` for each step from there on, the tokens of its prefills
        one after the other, the steps in which it was preempted, and those in which it ended.
    """
    num_steps = len(history.steps)
    return {
        "steps": num_steps,
        "ms": milliseconds and [round(each, 3) for each in milliseconds],
        "lanes": TimelineWindow.of(history, 0, num_steps - 1).lanes,
        "rows": [_row(cells) for cells in history.rows.values()],
    }


def _row(cells: dict[int, Cell]) -> list[Any]:
    first = min(cells, default=0)
    row = [cells.get(step, Cell()) for step in range(first, max(cells, default=-1) + 1)]
    return [
        first,
        "".join(KINDS[cell.kind] for cell in row),
        [cell.num_tokens for cell in row if cell.kind == "prefill"],
        [step for step, cell in enumerate(row, first) if cell.preempted],
        [step for step, cell in enumerate(row, first) if cell.finished],
    ]
