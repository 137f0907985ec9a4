"""Snapshot: all block tables at one moment, for the block grid and the block table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from minivllm.kv.block_table import slots_of
from minivllm.lab.viz.draw.palette import Owner, owners_of
from minivllm.lab.viz.draw.wording import count, span
from minivllm.trace import Trace
from minivllm.trace.groups import GroupLabel, TableGroup, group_labels
from minivllm.trace.records import (
    BlockCopied,
    BlocksAllocated,
    BlocksSkipped,
    StepPlanned,
    SwappedIn,
    Verified,
)
from minivllm.trace.state import SequenceState, State
from minivllm.utils.validation import check

MAX_SLOTS = 32  # slots of larger blocks are not drawn one by one


@dataclass(frozen=True)
class Slot:
    """Room for the K and V of one position.

    ``state`` is "filled"; "in flight", by the plan of an earlier step; "written", by that of this
    step, whose forward pass is about to run; "empty"; or "cached": no table holds the block, and
    the prefix cache can find it.
    """

    position: int
    slot: int
    state: str
    token: int | None  # None for an empty slot, and for a token that is not known yet
    is_draft: bool = False  # that is not verified yet

    @property
    def is_placeholder(self) -> bool:
        """True for a slot of a token that is on its way."""
        return self.token is None and self.state != "empty" and not self.is_draft


@dataclass(frozen=True)
class HeldBlock:
    """One entry of a block table. Block 0 is the null block: a window has left the entry behind."""

    owner: Owner
    logical: int
    block_id: int
    ref_count: int
    is_new: bool  # allocated in this step
    slots: tuple[Slot, ...]
    copied_from: int | None = None  # the block whose content it gets in this step
    group: int = 0  # whose table it is
    was: int | None = None  # the block that a null entry had before this step

    @property
    def is_null(self) -> bool:
        return self.block_id == 0

    @property
    def num_used(self) -> int:
        """Slots that are not empty; they always come first."""
        return sum(slot.state != "empty" for slot in self.slots)

    @property
    def num_written(self) -> int:
        return sum(slot.state == "written" for slot in self.slots)

    @property
    def num_in_flight(self) -> int:
        return sum(slot.state == "in flight" for slot in self.slots)


@dataclass(frozen=True)
class CachedTile:
    """A block that is free, but still cached.

    ``block`` is as its last owner saw it; its place in the free queue is 1 if it is the next one to
    be handed out, and so to be evicted.
    """

    block: HeldBlock
    place: int


@dataclass(frozen=True)
class SequenceTable:
    """One sequence and its blocks of a KV cache group, in the order of its positions."""

    owner: Owner
    seq: SequenceState
    blocks: tuple[HeldBlock, ...]
    num_now: int  # tokens that the plan of this step computes
    group: int = 0
    label: GroupLabel | None = None  # of the group, if there are several

    @property
    def num_left(self) -> int:
        """Number of entries that a window has left behind."""
        return sum(block.is_null for block in self.blocks)

    @property
    def name(self) -> str:
        """ "A", or "A window 64"."""
        return self.owner.letter + (f" {self.label.name}" if self.label else "")

    def key(self, block: HeldBlock) -> tuple:
        """Key of an entry, by which a mark can point at it."""
        return (self.owner.letter, *([self.label.name] if self.label else []), block.logical)


@dataclass(frozen=True)
class Snapshot:
    """All block tables at one moment, in order of arrival, and the pool they point into."""

    moment: str  # "step 3, after schedule"
    num_blocks: int
    block_size: int
    tables: tuple[SequenceTable, ...]
    cached: dict[int, CachedTile]  # blocks not held that the prefix cache can find, by id
    groups: tuple[TableGroup, ...] = ()
    skipped: frozenset[int] = frozenset()  # left behind by windows in this step, and now free

    @property
    def max_block_size(self) -> int:
        """Slots of the largest block."""
        return max([self.block_size, *(group.block_size for group in self.groups)])

    @property
    def labels(self) -> list[GroupLabel]:
        """Labels of the KV cache groups, if there are several."""
        return group_labels(self.groups)

    @property
    def holders(self) -> dict[int, list[HeldBlock]]:
        """The table entries that point to each held block, by block id."""
        holders: dict[int, list[HeldBlock]] = {}
        for table in self.tables:
            for block in table.blocks:
                if not block.is_null:
                    holders.setdefault(block.block_id, []).append(block)
        return holders


def take_snapshot(trace: Trace, step: int | None, after: str) -> Snapshot:
    """The block tables in ``step`` (None: the last one), after "schedule" or "update".

    Raises:
        ValueError: if the trace has no such step, or there is no such moment.
    """
    check(trace.num_steps > 0, "trace", trace, "of an engine that has run at least one step")
    step = trace.num_steps - 1 if step is None else step
    state = trace.state_at(step, after)
    owners = owners_of(trace)
    ref_counts = state.ref_counts
    new = _allocated_in(trace, step)
    copies = {
        (r.seq_id, r.dst_block_id): r.src_block_id
        for r in trace.at(step)
        if isinstance(r, BlockCopied)
    }
    drafts = {r.seq_id: r.draft_token_ids for r in trace.at(step) if isinstance(r, Verified)}
    skipped = _skipped_in(trace, step, after)
    labels: Sequence[GroupLabel | None] = group_labels(state.groups) or [None]
    tables = []
    for seq_id, owner in owners.items():
        if seq_id in state.sequences:
            seq = state.sequences[seq_id]
            num_now = sum(number for plan, number in seq.in_flight if plan == state.step)
            tokens = [*seq.token_ids, *drafts.get(seq_id, ())]
            for group, (label, table) in enumerate(zip(labels, seq.tables, strict=False)):
                size = state.block_size_of(group)
                was = _left_now(table, skipped.get((seq_id, group), ()))
                blocks = tuple(
                    HeldBlock(
                        owner,
                        logical,
                        block_id,
                        ref_count=ref_counts.get(block_id, 0),
                        is_new=(seq_id, block_id) in new,
                        slots=_slots(
                            seq, table, tokens, logical=logical, block_size=size, num_now=num_now
                        ),
                        copied_from=copies.get((seq_id, block_id)),
                        group=group,
                        was=was[logical],
                    )
                    for logical, block_id in enumerate(table)
                )
                tables.append(
                    SequenceTable(owner, seq, blocks, num_now=num_now, group=group, label=label)
                )
    moment = "before the first step" if step == -1 else f"step {step}, after {after}"
    cached = {
        block_id: CachedTile(_cached_block(state, owners, block_id), place)
        for place, block_id in enumerate(state.free_queue, start=1)
        if block_id in state.contents
    }
    given_back = {block_id for ids in skipped.values() for block_id in ids}
    return Snapshot(
        moment,
        state.num_blocks,
        state.block_size,
        tuple(tables),
        cached,
        groups=state.groups,
        skipped=frozenset(given_back - ref_counts.keys()),
    )


def _cached_block(state: State, owners: dict[str, Owner], block_id: int) -> HeldBlock:
    content = state.contents[block_id]
    size = state.block_size_of(content.group)
    first = content.logical * size
    slots = tuple(
        Slot(first + offset, block_id * size + offset, "cached", token)
        for offset, token in enumerate(content.token_ids)
    )
    return HeldBlock(
        owners[content.seq_id], content.logical, block_id, ref_count=0, is_new=False, slots=slots,
        group=content.group,
    )  # fmt: skip


def _slots(
    seq: SequenceState, table: list[int], tokens: list[int], logical: int, block_size: int,
    num_now: int,
) -> tuple[Slot, ...]:  # fmt: skip
    first = logical * block_size
    numbers = slots_of(table, first, first + block_size, block_size)
    num_filled = seq.num_computed_tokens
    num_used = num_filled + seq.num_scheduled_tokens

    def slot(position: int, number: int) -> Slot:
        if position >= num_used or table[logical] == 0:
            return Slot(position, number, "empty", None)
        token = tokens[position] if position < len(tokens) else None
        if position < num_filled:
            return Slot(position, number, "filled", token)
        if position < num_used - num_now:
            return Slot(position, number, "in flight", token)
        # drafts are behind a known token that is computed with them
        is_draft = token is None and num_used - num_now < len(tokens)
        return Slot(position, number, "written", token, is_draft)

    return tuple(slot(position, number) for position, number in enumerate(numbers, first))


def _allocated_in(trace: Trace, step: int) -> set[tuple[str, int]]:
    """Pairs of a sequence and a block that it got in this step, to fill or to copy into."""
    pairs = set()
    for record in trace.at(step):
        if isinstance(record, (BlocksAllocated, SwappedIn)):
            pairs.update((record.seq_id, block_id) for block_id in record.block_ids)
        elif isinstance(record, BlockCopied):
            pairs.add((record.seq_id, record.dst_block_id))
    return pairs


def _skipped_in(trace: Trace, step: int, after: str) -> dict[tuple[str, int], tuple[int, ...]]:
    """Blocks that windows have left behind in this step, by sequence and group."""
    skipped: dict[tuple[str, int], tuple[int, ...]] = {}
    for record in trace.at(step):
        if after == "schedule" and isinstance(record, StepPlanned):
            break
        if isinstance(record, BlocksSkipped):
            key = record.seq_id, record.group
            skipped[key] = (*skipped.get(key, ()), *record.block_ids)
    return skipped


def _left_now(table: list[int], skipped: tuple[int, ...]) -> list[int | None]:
    """For each entry of a table the block that it had before this step's window left it behind."""
    num_null = table.count(0)
    left = skipped if len(skipped) <= num_null else ()  # else the table is another one by now
    before = [None] * (num_null - len(left))
    return [*before, *left, *[None] * (len(table) - num_null)]


MAX_DETAILED = 48  # more entries than this are shown without their slots and tokens
MAX_ENTRIES = 120  # more than this are not shown at all


def choose(snapshot: Snapshot, sequences: Iterable[str] | None) -> list[SequenceTable]:
    if sequences is None:
        return [table for table in snapshot.tables if table.blocks]
    by_id: dict[str, list[SequenceTable]] = {}
    for table in snapshot.tables:
        by_id.setdefault(table.seq.seq_id, []).append(table)
    chosen = []
    for seq_id in sequences:
        if seq_id not in by_id:
            known = ", ".join(map(repr, by_id)) or "none"
            raise ValueError(f"{snapshot.moment}: no sequence {seq_id!r}; there are {known}.")
        chosen += by_id[seq_id]
    return chosen


@dataclass(frozen=True)
class BlockTables:
    """The chosen tables of a snapshot, and what to say about them."""

    snapshot: Snapshot
    drawn: list[SequenceTable]
    num_left_out: int  # entries

    @classmethod
    def of(cls, snapshot: Snapshot, chosen: list[SequenceTable]) -> BlockTables:
        """Entries of tables that fit, the first tables first."""
        drawn = []
        room = MAX_ENTRIES
        for table in chosen:
            if room > 0:
                drawn.append(replace(table, blocks=table.blocks[:room]))
            room -= len(table.blocks)
        return cls(snapshot, drawn, max(0, -room))

    @property
    def blocks(self) -> list[HeldBlock]:
        """Entries that have a block."""
        return [b for table in self.drawn for b in table.blocks if not b.is_null]

    @property
    def num_left(self) -> int:
        """Entries that windows have left behind."""
        return sum(table.num_left for table in self.drawn)

    @property
    def detailed(self) -> bool:
        few = len(self.blocks) + self.num_left <= MAX_DETAILED
        return few and self.snapshot.max_block_size <= MAX_SLOTS

    @property
    def title(self) -> str:
        return f"Block tables, {self.snapshot.moment}"

    @property
    def facts(self) -> str:
        new = sum(block.is_new for block in self.blocks)
        num_sequences = len({table.owner.seq_id for table in self.drawn})
        parts = [count(num_sequences, "sequence"), _entries(len(self.blocks) + self.num_left)]
        parts.append(f"{new} new in this step")
        if self.num_left:
            parts.append(f"{self.num_left} left behind by a window")
        return " · ".join(parts)

    @property
    def footnote(self) -> str:
        if not self.num_left_out:
            return ""
        return f"and {_entries(self.num_left_out)} more; choose with sequences=[...]."

    @property
    def alt(self) -> str:
        if len(self.blocks) + self.num_left > MAX_DETAILED or not self.drawn:
            return f"{self.title}: {self.facts.replace(' · ', ', ')}."
        parts = [
            f"{t.name} → {', '.join(_named(b) for b in t.blocks) or 'no block'}" for t in self.drawn
        ]
        parts += [
            f"{b.block_id} is a copy of {b.copied_from}"
            for b in self.blocks
            if b.copied_from is not None
        ]
        return f"{self.title}: {'; '.join(parts)}."


def _named(block: HeldBlock) -> str:
    """ "7", "null", or "null (was 7)"."""
    if not block.is_null:
        return str(block.block_id)
    return "null" if block.was is None else f"null (was {block.was})"


def _entries(number: int) -> str:
    return count(number, "entry", plural="entries")


def positions(block: HeldBlock) -> str:
    return f"pos {span(block.slots[0].position, block.slots[-1].position)}"


def slots(block: HeldBlock) -> str:
    return f"slots {span(block.slots[0].slot, block.slots[-1].slot)}"


def physical(block: HeldBlock) -> str:
    return f"{block.block_id}" + (f" ×{block.ref_count}" if block.ref_count > 1 else "")


def copy_note(block: HeldBlock) -> str:
    return "" if block.copied_from is None else f"copy of {block.copied_from}"


def progress(table: SequenceTable) -> str:
    """Number of its tokens in the cache, of those in flight, and of those that this step adds."""
    seq = table.seq
    earlier = seq.num_scheduled_tokens - table.num_now
    parts = [f"{seq.num_computed_tokens} computed"]
    parts += [f"+{earlier} in flight"] if earlier else []
    parts += [f"+{table.num_now} now"] if table.num_now else []
    return " ".join(parts)
