"""StepFrame: one step of a run in words and in numbers, for the stepper and the HTML page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from minivllm.lab.viz.draw.palette import Owner, owners_of
from minivllm.lab.viz.draw.wording import sentences
from minivllm.lab.viz.model.narration import Narration
from minivllm.trace import Trace
from minivllm.trace.records import (
    OWN_PLAN,
    BlockCopied,
    BlocksAllocated,
    BlocksSkipped,
    Record,
    StepEnded,
    StepPlanned,
    StepStarted,
    SwappedIn,
)
from minivllm.trace.state import State
from minivllm.utils.validation import check


@dataclass(frozen=True)
class Row:
    """One sequence of a frame that holds blocks or has something to compute.

    Of several KV cache groups it is one table of the sequence.
    """

    owner: Owner
    num_tokens: int  # that are known
    num_computed: int  # before this step
    num_scheduled: int  # by this step
    block_ids: tuple[int, ...]  # 0: a window has left the entry behind
    num_new: int  # blocks that this step added; they are the last ones
    num_in_flight: int = 0  # between these: scheduled by earlier steps, and not back yet
    group: int = 0  # of KV caches, whose table it is
    left: tuple[int, ...] = ()  # blocks that this step's window left behind, the last nulls' own


@dataclass(frozen=True)
class FreeBlock:
    """A block that is free but still cached: whose it was, and its place in the free queue."""

    block_id: int
    owner: Owner
    logical: int
    place: int  # 1 is handed out next
    group: int = 0  # of KV caches


@dataclass(frozen=True)
class StepFrame:
    """One step: what led to it, its plan as the forward pass sees it, and what came out.

    ``before``, ``plan`` and ``result`` are sentences; ``before`` and ``result`` can be empty.
    Sequences and requests are named by their ids, in order.
    """

    step: int
    before: str
    plan: str
    result: str
    rows: tuple[Row, ...]  # in order of arrival
    running: tuple[str, ...]  # sequences, in order of admission
    waiting: tuple[str, ...]  # requests, the next one first
    swapped: tuple[str, ...]  # sequences whose blocks are on the host
    receiving: tuple[str, ...]  # requests whose K and V come from elsewhere
    sending: tuple[str, ...]  # sequences that have ended, and whose K and V are sent
    cached: frozenset[int]  # blocks that the prefix cache can find, held or not
    free: tuple[FreeBlock, ...] = ()  # not held, the next one to go first
    # in the encoder cache: identifier, and sequences that need it
    items: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def words(self) -> str:
        """All that happens, in up to three sentences."""
        return sentences(self.before, self.plan, self.result)

    @property
    def ref_counts(self) -> dict[int, int]:
        """Number of tables with each held block, by block id."""
        return dict(Counter(b for row in self.rows for b in row.block_ids if b))

    @property
    def num_scheduled(self) -> int:
        """Tokens that this step computes, of all sequences."""
        return sum(row.num_scheduled for row in self.rows if row.group == 0)

    @property
    def given_back(self) -> list[int]:
        """Blocks that windows have left behind in this step, and none holds now."""
        held = self.ref_counts
        return sorted({b for row in self.rows for b in row.left if b not in held})


def frames(trace: Trace, decode: Callable[[int], str] | None = None) -> Iterator[StepFrame]:
    """Every step of a run, in order, from one replay of its trace.

    What happens between two steps is told by the later one; what happens after the last one, by
    the last one.

    Args:
        trace: what the engine wrote.
        decode: turns a token id into text, to name the tokens that are drawn.

    Raises:
        ValueError: for a trace without steps.
    """
    check(trace.num_steps > 0, "trace", trace, "of an engine that has run at least one step")
    return _replay(trace, decode)


def _replay(trace: Trace, decode: Callable[[int], str] | None) -> Iterator[StepFrame]:
    state = trace.beginning()
    reader = StepReader(state, owners_of(trace), decode)
    for record in trace.records:
        if isinstance(record, StepStarted) and reader.frame is not None:
            yield reader.frame
        reader.read(record)
    if reader.frame is not None:  # it is None if an error in schedule() ended the run
        yield reader.frame_so_far()


class StepReader:
    """Reads records in order, and makes a frame of the step that they have come to.

    Args:
        state: before the first record; every record read is applied to it.
        owners: by sequence id, those included that are still to come.
        decode: as for ``frames``.
    """

    def __init__(
        self, state: State, owners: Mapping[str, Owner], decode: Callable[[int], str] | None
    ):
        self.state = state
        self.frame: StepFrame | None = None  # None from a step's beginning until it is planned
        self._owners = owners
        self._decode = decode
        self._telling = Narration(owners, decode)
        self._before = ""
        self._new: set[tuple[str, int]] = set()  # sequence and block
        self._left: dict[tuple[str, int], tuple[int, ...]] = {}  # behind a window, by group

    def read(self, record: Record) -> None:
        """Take one more record."""
        match record:
            case StepStarted():
                self._before = self._told()
                self.frame = None
                self._new.clear()
                self._left.clear()
            case BlocksSkipped(_, seq_id, block_ids, group):
                self._left[seq_id, group] = self._left.get((seq_id, group), ()) + block_ids
            case BlocksAllocated(_, seq_id, block_ids) | SwappedIn(_, seq_id, block_ids):
                self._new.update((seq_id, block_id) for block_id in block_ids)
            case BlockCopied(_, seq_id, _, dst):
                self._new.add((seq_id, dst))
            case StepPlanned(step):
                plan = self._told() or "Nothing is scheduled."
                self.frame = StepFrame(
                    step,
                    self._before,
                    plan,
                    result="",
                    rows=self._rows(step),
                    free=self._free_blocks(),
                    **queues_of(self.state),
                )
            case StepEnded(_, _, plan) if self.frame is not None:
                told = filter(None, (_ended(plan), self._told()))
                self.frame = replace(self.frame, result=" ".join(told))
        self._telling.note(self.state, record)
        self.state.apply(record)

    def frame_so_far(self) -> StepFrame:
        """The frame of the step, which also tells what has happened since its end."""
        told = filter(None, (self.frame.result, self._telling.text()))
        return replace(self.frame, result=" ".join(told))

    def _told(self) -> str:
        """Text on the records that were read since the last call."""
        text = self._telling.text()
        self._telling = Narration(self._owners, self._decode)
        return text

    def num_new(self, seq_id: str, block_ids: Iterable[int]) -> int:
        """Number of a sequence's blocks that this step has added."""
        return sum((seq_id, block_id) in self._new for block_id in block_ids)

    def rows_of(
        self, owner: Owner, num_computed: int, num_now: int, num_in_flight: int
    ) -> list[Row]:
        """Rows of a sequence: one for each KV cache group."""
        seq = self.state.sequences[owner.seq_id]
        num_tables = max(1, len(self.state.groups))
        return [
            Row(
                owner,
                len(seq.token_ids),
                num_computed=num_computed,
                num_scheduled=num_now,
                block_ids=tuple(table),
                num_new=self.num_new(seq.seq_id, table),
                num_in_flight=num_in_flight,
                group=group,
                left=self._left.get((seq.seq_id, group), ()),
            )
            for group, table in enumerate(seq.tables[:num_tables])
        ]

    def _rows(self, step: int) -> tuple[Row, ...]:
        rows = []
        for seq_id, owner in self._owners.items():
            seq = self.state.sequences.get(seq_id)
            if seq is None:
                continue
            # one that is over may be in a plan on its way; it holds nothing
            if any(seq.tables) or (seq.num_scheduled_tokens and seq.status == "running"):
                num_now = sum(number for plan, number in seq.in_flight if plan == step)
                num_in_flight = seq.num_scheduled_tokens - num_now
                rows += self.rows_of(owner, seq.num_computed_tokens, num_now, num_in_flight)
        return tuple(rows)

    def _free_blocks(self) -> tuple[FreeBlock, ...]:
        """Free blocks that can be found, in the free queue's order."""
        return tuple(
            FreeBlock(block_id, self._owners[content.seq_id], content.logical, place, content.group)
            for place, block_id in enumerate(self.state.free_queue, start=1)
            if (content := self.state.contents.get(block_id)) is not None
            and content.seq_id in self._owners  # of a run that goes on, some are forgotten
        )


def _ended(plan: int | None) -> str:
    """Sentence on the plan that has ended with a step; nothing to say of its own."""
    if plan == OWN_PLAN:
        return ""
    return "No plan has ended." if plan is None else f"The plan of step {plan} has ended."


def queues_of(state: State) -> dict[str, Any]:
    """Fields of a frame: running, waiting, swapped out, in transfer; what both caches have."""
    return {
        "running": tuple(state.running),
        "waiting": tuple(state.waiting),
        "swapped": tuple(state.swapped),
        "receiving": tuple(state.receiving),
        "sending": tuple(state.sending),
        "cached": frozenset(state.cached),
        "items": tuple((name, tuple(item.holders)) for name, item in state.items.items()),
    }
