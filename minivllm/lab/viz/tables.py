"""The block tables at one moment: which of them are shown, and what there is to say about each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from minivllm.lab.viz import blocks as look
from minivllm.lab.viz.snapshot import HeldBlock, Snapshot, Table
from minivllm.lab.viz.wording import count, span

MAX_DETAILED = 48  # more entries than this are shown without their slots and tokens
MAX_ENTRIES = 120  # more than this are not shown at all


def choose(snapshot: Snapshot, sequences: Iterable[str] | None) -> list[Table]:
    if sequences is None:
        return [table for table in snapshot.tables if table.blocks]
    by_id = {table.seq.seq_id: table for table in snapshot.tables}
    chosen = []
    for seq_id in sequences:
        if seq_id not in by_id:
            known = ", ".join(map(repr, by_id)) or "none"
            raise ValueError(f"{snapshot.moment}: no sequence {seq_id!r}; there are {known}.")
        chosen.append(by_id[seq_id])
    return chosen


@dataclass(frozen=True)
class Tables:
    """The chosen tables of a snapshot, and what to say about them."""

    snapshot: Snapshot
    drawn: list[Table]
    num_left_out: int  # entries

    @classmethod
    def of(cls, snapshot: Snapshot, chosen: list[Table]) -> Tables:
        """As many entries as there is room for, the first tables first."""
        drawn, room = [], MAX_ENTRIES
        for table in chosen:
            if room > 0:
                drawn.append(replace(table, blocks=table.blocks[:room]))
            room -= len(table.blocks)
        return cls(snapshot, drawn, max(0, -room))

    @property
    def blocks(self) -> list[HeldBlock]:
        return [block for table in self.drawn for block in table.blocks]

    @property
    def detailed(self) -> bool:
        few = len(self.blocks) <= MAX_DETAILED
        return few and self.snapshot.block_size <= look.MAX_SLOTS

    @property
    def title(self) -> str:
        return f"Block tables, {self.snapshot.moment}"

    @property
    def facts(self) -> str:
        new = sum(block.is_new for block in self.blocks)
        parts = [count(len(self.drawn), "sequence"), _entries(len(self.blocks))]
        parts.append(f"{new} new in this step")
        return " · ".join(parts)

    @property
    def footnote(self) -> str:
        if not self.num_left_out:
            return ""
        return f"and {_entries(self.num_left_out)} more; choose with sequences=[...]."

    @property
    def alt(self) -> str:
        if len(self.blocks) > MAX_DETAILED or not self.drawn:
            return f"{self.title}: {self.facts.replace(' · ', ', ')}."
        parts = [
            f"{t.owner.letter} → {', '.join(str(b.block_id) for b in t.blocks) or 'no block'}"
            for t in self.drawn
        ]
        parts += [
            f"{b.block_id} is a copy of {b.copied_from}"
            for b in self.blocks
            if b.copied_from is not None
        ]
        return f"{self.title}: {'; '.join(parts)}."


def _entries(number: int) -> str:
    return f"{number} {'entry' if number == 1 else 'entries'}"


def positions(block: HeldBlock) -> str:
    return f"pos {span(block.slots[0].position, block.slots[-1].position)}"


def slots(block: HeldBlock) -> str:
    return f"slots {span(block.slots[0].slot, block.slots[-1].slot)}"


def physical(block: HeldBlock) -> str:
    return f"{block.block_id}" + (f" ×{block.ref_count}" if block.ref_count > 1 else "")


def copy_note(block: HeldBlock) -> str:
    return "" if block.copied_from is None else f"copy of {block.copied_from}"


def progress(table: Table) -> str:
    """How many of its tokens are in the cache, and how many this step adds."""
    now = table.seq.num_scheduled_tokens
    return f"{table.seq.num_computed_tokens} computed" + (f" +{now} now" if now else "")
