"""The queues in characters: a line per step, or in a long run one column for several steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minivllm.lab.viz.timeline_text import LEVELS
from minivllm.lab.viz.wording import pad, shorten

if TYPE_CHECKING:
    from minivllm.lab.viz.queues import Queues

TERMINAL = 96  # columns
MAX_LINES = 40


def queues_text(queues: Queues) -> str:
    """Who stands where in a short run; how many in a long one."""
    small = len(queues.moments) <= MAX_LINES and max(m.size for m in queues.moments) <= 20
    lines = _lines(queues) if small else _levels(queues)
    legend = "× gave way in this step" if queues.num_preemptions else ""
    return "\n".join([queues.title, queues.facts, "", *lines, *(["", legend] if legend else [])])


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
    per_column = -(-len(queues.moments) // room)
    columns = [
        queues.moments[i : i + per_column] for i in range(0, len(queues.moments), per_column)
    ]
    lines = [f"one column: {per_column} steps"] if per_column > 1 else []
    for name, peak in queues.peaks.items():
        if peak:
            highest = (max(len(getattr(m, name)) for m in column) for column in columns)
            lines.append(pad(name, 10) + "".join(LEVELS[-(-n * 8 // peak)] for n in highest))
            lines.append(f"          peak {peak} (█)")
    marks = "".join("×" if any(m.preempted for m in column) else " " for column in columns)
    lines += ["preempted " + marks] if marks.strip() else []
    return [line.rstrip() for line in lines]
