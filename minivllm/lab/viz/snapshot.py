"""Snapshot: what the block grid and the block table both show, before either is drawn."""

from __future__ import annotations

from dataclasses import dataclass

from minivllm.kv.block_table import slots_of
from minivllm.lab.viz.palette import Owner, owners_of
from minivllm.records import BlockCopied, BlocksAllocated, SwappedIn
from minivllm.state import SequenceState
from minivllm.trace import Trace
from minivllm.validation import check


@dataclass(frozen=True)
class Slot:
    """Room for the K and V of one position. ``state`` is "filled", "written" or "empty".

    "written" means by the current step, whose forward pass is about to run.
    """

    position: int
    slot: int
    state: str
    token: int | None  # None for an empty slot


@dataclass(frozen=True)
class HeldBlock:
    """One entry of a block table."""

    owner: Owner
    logical: int
    block_id: int
    ref_count: int
    is_new: bool  # allocated in this step
    slots: tuple[Slot, ...]
    copied_from: int | None = None  # the block whose content it gets in this step

    @property
    def num_used(self) -> int:
        """Slots that are not empty; they always come first."""
        return sum(slot.state != "empty" for slot in self.slots)

    @property
    def num_written(self) -> int:
        return sum(slot.state == "written" for slot in self.slots)


@dataclass(frozen=True)
class Table:
    """One sequence and its blocks, in the order of its positions."""

    owner: Owner
    seq: SequenceState
    blocks: tuple[HeldBlock, ...]


@dataclass(frozen=True)
class Snapshot:
    """All block tables at one moment, in order of arrival, and the pool they point into."""

    moment: str  # "step 3, after schedule"
    num_blocks: int
    block_size: int
    tables: tuple[Table, ...]
    cached: frozenset[int]  # blocks that the prefix cache can find, held or not

    @property
    def holders(self) -> dict[int, list[HeldBlock]]:
        """The table entries that point to each held block, by block id."""
        holders: dict[int, list[HeldBlock]] = {}
        for table in self.tables:
            for block in table.blocks:
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
    owners, ref_counts, new = owners_of(trace), state.ref_counts, _allocated_in(trace, step)
    copies = {
        (r.seq_id, r.dst_block_id): r.src_block_id
        for r in trace.at(step)
        if isinstance(r, BlockCopied)
    }
    tables = []
    for seq_id, owner in owners.items():
        if seq_id in state.sequences:
            seq = state.sequences[seq_id]
            blocks = tuple(
                HeldBlock(
                    owner,
                    logical,
                    block_id,
                    ref_counts[block_id],
                    (seq_id, block_id) in new,
                    _slots(seq, logical, state.block_size),
                    copies.get((seq_id, block_id)),
                )
                for logical, block_id in enumerate(seq.block_ids)
            )
            tables.append(Table(owner, seq, blocks))
    moment = "before the first step" if step == -1 else f"step {step}, after {after}"
    return Snapshot(
        moment, state.num_blocks, state.block_size, tuple(tables), frozenset(state.cached)
    )


def _slots(seq: SequenceState, logical: int, block_size: int) -> tuple[Slot, ...]:
    first = logical * block_size
    numbers = slots_of(seq.block_ids, first, first + block_size, block_size)
    num_filled = seq.num_computed_tokens
    num_used = num_filled + seq.num_scheduled_tokens
    return tuple(
        Slot(position, number, "filled", seq.token_ids[position]) if position < num_filled
        else Slot(position, number, "written", seq.token_ids[position]) if position < num_used
        else Slot(position, number, "empty", None)
        for position, number in enumerate(numbers, first)
    )  # fmt: skip


def _allocated_in(trace: Trace, step: int) -> set[tuple[str, int]]:
    """Pairs of a sequence and a block that it got in this step, to fill or to copy into."""
    pairs = set()
    for record in trace.at(step):
        if isinstance(record, (BlocksAllocated, SwappedIn)):
            pairs.update((record.seq_id, block_id) for block_id in record.block_ids)
        elif isinstance(record, BlockCopied):
            pairs.add((record.seq_id, record.dst_block_id))
    return pairs
