"""Replay of an X-ray's records, of which a broken file may have some that cannot follow."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import dropwhile

from minivllm.trace.records import (
    BlocksAllocated,
    BlocksOfSequence,
    BlocksShared,
    BlocksSkipped,
    Record,
    RequestAdded,
    Scheduled,
    StepEnded,
    StepPlanned,
    StepStarted,
    SwappedIn,
    TokensWasted,
)
from minivllm.trace.state import ALIVE, State
from minivllm.utils.validation import shown
from minivllm.xray.format import XRay

_WITH_NULLS = (BlocksShared, SwappedIn)
_STAGES = (StepStarted, StepPlanned, StepEnded)
_FORGET_EVERY = 256  # steps


def check_records(xray: XRay) -> None:
    """Raise ``ValueError`` for a record that cannot follow those before it.

    A file may have been written by others, or edited: a replay can then rely on it.
    """
    state = xray.trace.beginning()
    stage = 0
    for record in xray.trace.records:
        apply_record(state, record)
        if isinstance(record, _STAGES):
            if not isinstance(record, _STAGES[stage]):
                raise _contradiction(record, f"a {_STAGES[stage].__name__} was to come")
            stage = (stage + 1) % len(_STAGES)
        if isinstance(record, StepEnded) and record.step % _FORGET_EVERY == 0:
            state.forget_finished()


def apply_record(state: State, record: Record) -> None:
    """Apply a record to the state before it.

    Raises:
        ValueError: if it names a sequence, a block or a step that cannot be there.
    """
    check_record(state, record)
    try:
        state.apply(record)
    except (KeyError, ValueError, IndexError, AttributeError, TypeError) as error:
        raise _contradiction(record, f"it cannot follow ({error!r})") from None
    state.step = record.step


def check_record(state: State, record: Record) -> None:
    """Raise ``ValueError`` for a record of a sequence, a block or a step that cannot be there."""
    if problem := _problem(state, record):
        raise _contradiction(record, problem)


def _contradiction(record: Record, problem: str) -> ValueError:
    return ValueError(
        f"the X-ray contradicts itself in step {record.step}: {problem}, at {shown(record)}."
    )


def _problem(state: State, record: Record) -> str:
    """Say in words what cannot be about a record; empty if it can follow."""
    expected = state.step + isinstance(record, StepStarted)
    if record.step != expected:
        return f"step {expected} was to come"
    index = getattr(record, "queue_index", None)
    if index is not None and not 0 <= index <= len(state.waiting):
        return f"{len(state.waiting)} requests wait"
    if isinstance(record, RequestAdded):
        known = state.sequences.get(record.request_id)
        alive = known is not None and known.status in ALIVE
        return f"request {record.request_id!r} is there already" if alive else ""
    # tokens are wasted when their sequence is over
    is_wasted = isinstance(record, TokensWasted)
    if (seq_id := getattr(record, "seq_id", None)) is not None and not is_wasted:
        seq = state.sequences.get(seq_id)
        if seq is None or seq.status not in ALIVE:
            return f"request {seq_id!r} is not there"
    if isinstance(record, BlocksOfSequence) and (problem := _problem_of_blocks(state, record)):
        return problem
    if isinstance(record, Scheduled):
        if record.kind not in ("new", "resumed", "running"):
            return "a sequence is new, resumed or running"
        if record.num_tokens < 1 or record.num_computed_tokens < 0:
            return "a plan computes at least one token"
    return ""


def _problem_of_blocks(state: State, record: BlocksOfSequence) -> str:
    block_ids = record.block_ids
    if isinstance(record, _WITH_NULLS):
        block_ids = _without_nulls(block_ids)
    known_ids = range(1, state.num_blocks)
    if not all(block_id in known_ids for block_id in block_ids):
        return f"blocks are numbered 1 to {state.num_blocks - 1}"
    if state.groups and record.group >= len(state.groups):  # type: ignore[attr-defined]
        return f"there are {len(state.groups)} KV cache groups"
    match record:
        case BlocksAllocated():
            if not all(block_id in state.free_queue for block_id in block_ids):
                return "a block that is in use is handed out"
        case BlocksSkipped(_, seq_id, _, group):
            tables = state.sequences[seq_id].tables
            table = tables[group] if group < len(tables) else []
            if not block_ids or _without_nulls(table)[: len(block_ids)] != block_ids:
                return "a window leaves the first blocks of its table behind"
    return ""


def _without_nulls(table: Sequence[int]) -> tuple[int, ...]:
    """Block ids of a table behind the nulls that it begins with."""
    return tuple(dropwhile(lambda block_id: block_id == 0, table))
