"""Chart: the part of a history that a timeline shows, before it is drawn or written."""

from __future__ import annotations

from dataclasses import dataclass

from minivllm.lab.viz.history import Cell, History, StepUse
from minivllm.lab.viz.palette import Owner
from minivllm.lab.viz.wording import count, span

MAX_ROWS = 300


@dataclass(frozen=True)
class Chart:
    """The part of a history that is drawn, and what to say about it."""

    first: int
    last: int
    all_rows: list[tuple[Owner, dict[int, Cell]]]  # those with something to show, by arrival
    steps: list[StepUse]
    max_num_batched_tokens: int
    num_usable_blocks: int

    @classmethod
    def of(cls, history: History, first: int, last: int) -> Chart:
        rows = []
        for seq_id, cells in history.rows.items():
            seen = {step: cell for step, cell in cells.items() if first <= step <= last}
            if seen:
                rows.append((history.owners[seq_id], seen))
        return cls(
            first, last, rows, history.steps[first : last + 1], history.max_num_batched_tokens,
            history.num_usable_blocks,
        )  # fmt: skip

    @property
    def rows(self) -> list[tuple[Owner, dict[int, Cell]]]:
        """Those that are shown."""
        return self.all_rows[:MAX_ROWS]

    @property
    def footnote(self) -> str:
        left_out = len(self.all_rows) - len(self.rows)
        if not left_out:
            return ""
        return f"and {count(left_out, 'more sequence')}; choose steps with first= and last=."

    @property
    def cells(self) -> list[Cell]:
        return [cell for _, row in self.all_rows for cell in row.values()]

    @property
    def lanes(self) -> list[tuple[str, str, list[int], int]]:
        """Name, what the limit is called, values by step, and the limit."""
        return [
            ("tokens", "budget", [s.num_tokens for s in self.steps], self.max_num_batched_tokens),
            ("blocks", "usable", [s.num_blocks for s in self.steps], self.num_usable_blocks),
        ]

    @property
    def title(self) -> str:
        return f"Timeline, {'step' if self.first == self.last else 'steps'} " + span(
            self.first, self.last
        )

    @property
    def facts(self) -> str:
        tokens = sum(step.num_tokens for step in self.steps)
        preempted = sum(cell.preempted for cell in self.cells)
        finished = sum(cell.finished for cell in self.cells)
        dropped = sum(cell.dropped for cell in self.cells)
        parts = [
            count(len(self.all_rows), "sequence"),
            f"{count(tokens, 'token')} computed",
            count(preempted, "preemption"),
            f"{finished} finished",
            *([f"{count(dropped, 'beam')} dropped"] if dropped else []),
        ]
        return " · ".join(parts)

    @property
    def alt(self) -> str:
        peaks = (
            f"at most {max(values)} of {limit} {name}" for name, _, values, limit in self.lanes
        )
        return f"{self.title}: {self.facts.replace(' · ', ', ')}; {' and '.join(peaks)} in a step."
