"""StepFrame: one step of a run in words and in numbers, for the stepper and the HTML page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from minivllm.lab.viz.draw.palette import Owner, owners_of
from minivllm.lab.viz.model.narration import Narration
from minivllm.records import (
    BlockCopied,
    BlocksAllocated,
    StepEnded,
    StepPlanned,
    StepStarted,
    SwappedIn,
)
from minivllm.state import State
from minivllm.trace import Trace
from minivllm.validation import check


@dataclass(frozen=True)
class Row:
    """One sequence of a frame that holds blocks or has something to compute."""

    owner: Owner
    num_tokens: int
    num_computed: int  # before this step
    num_scheduled: int  # by this step
    block_ids: tuple[int, ...]
    num_new: int  # blocks that this step added; they are the last ones

    def fill(self, logical: int, block_size: int) -> tuple[int, int]:
        """Slots of a block that were filled before this step, and those that it writes."""
        first = logical * block_size
        filled = min(max(self.num_computed - first, 0), block_size)
        used = min(max(self.num_computed + self.num_scheduled - first, 0), block_size)
        return filled, used - filled


@dataclass(frozen=True)
class FreeBlock:
    """A block that is free but still cached: whose it was, and its place in the free queue."""

    block_id: int
    owner: Owner
    logical: int
    place: int  # 1 is handed out next


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
    cached: frozenset[int]  # blocks that the prefix cache can find, held or not
    free: tuple[FreeBlock, ...]  # those of them that nobody holds, the next one to go first

    @property
    def words(self) -> str:
        """All that happens, in up to three sentences."""
        return " ".join(filter(None, (self.before, self.plan, self.result)))

    @property
    def ref_counts(self) -> dict[int, int]:
        """In how many tables each held block stands, by block id."""
        return dict(Counter(block_id for row in self.rows for block_id in row.block_ids))

    @property
    def num_scheduled(self) -> int:
        """Tokens that this step computes, of all sequences."""
        return sum(row.num_scheduled for row in self.rows)


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
    owners = owners_of(trace)
    state = trace.beginning()
    telling, before = Narration(owners, decode), ""
    new: set[tuple[str, int]] = set()  # sequence and block
    frame = None
    for record in trace.records:
        match record:
            case StepStarted():
                if frame is not None:
                    yield frame
                    frame = None
                before, telling = telling.text(), Narration(owners, decode)
                new.clear()
            case BlocksAllocated(_, seq_id, block_ids) | SwappedIn(_, seq_id, block_ids):
                new.update((seq_id, block_id) for block_id in block_ids)
            case BlockCopied(_, seq_id, _, dst):
                new.add((seq_id, dst))
            case StepPlanned():
                plan = telling.text() or "Nothing is scheduled."
                frame = _frame(state, owners, new, record.step, before, plan)
                telling = Narration(owners, decode)
            case StepEnded():
                frame = replace(frame, result=telling.text())
                telling = Narration(owners, decode)
        telling.note(state, record)
        state.apply(record)
    if frame is not None:  # it is None if an error in schedule() ended the run
        told = filter(None, (frame.result, telling.text()))
        yield replace(frame, result=" ".join(told))


def _frame(
    state: State, owners: dict[str, Owner], new: set[tuple[str, int]], step: int, before: str,
    plan: str,
) -> StepFrame:  # fmt: skip
    rows = []
    for seq_id, owner in owners.items():
        seq = state.sequences.get(seq_id)
        if seq is not None and (seq.block_ids or seq.num_scheduled_tokens):
            num_new = sum((seq_id, block_id) in new for block_id in seq.block_ids)
            rows.append(
                Row(
                    owner,
                    len(seq.token_ids),
                    seq.num_computed_tokens,
                    seq.num_scheduled_tokens,
                    tuple(seq.block_ids),
                    num_new,
                )
            )
    free = tuple(
        FreeBlock(block_id, owners[content.seq_id], content.logical, place)
        for place, block_id in enumerate(state.free_queue, start=1)
        if (content := state.contents.get(block_id)) is not None
    )
    return StepFrame(
        step, before, plan, "", tuple(rows), tuple(state.running), tuple(state.waiting),
        tuple(state.swapped), frozenset(state.cached), free,
    )  # fmt: skip
