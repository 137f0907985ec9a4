"""Forks: siblings of a sequence, which share its tokens and its blocks."""

from __future__ import annotations

from collections.abc import Iterable

from minivllm.request import RequestStatus, Sequence
from minivllm.scheduling.checkpoint import SchedulerState
from minivllm.scheduling.output import SchedulerOutput
from minivllm.trace.records import Forked


def plan_forks(seq: Sequence, output: SchedulerOutput) -> None:
    """Let the step draw a token for each sibling to come, if it computes the prompt's end.

    Beams are forked later, when their candidates are known.
    """
    if seq.request.beam_search is None and seq.num_computed_tokens >= seq.num_tokens:
        output.forks[seq.seq_id] = seq.request.seq_ids[1:]


def fork(scheduler: SchedulerState, seq: Sequence, indices: Iterable[int]) -> list[Sequence]:
    """Fork a sequence. Returns siblings that share its tokens and blocks, beside it."""
    children = [seq.fork(index) for index in indices]
    runs = seq.status == RequestStatus.RUNNING  # not if it was preempted meanwhile
    for child in children:
        if runs:
            scheduler.kv_manager.fork(seq, child)
        scheduler.sequences[child.seq_id] = child
        if scheduler.trace is not None:
            scheduler.trace.record(Forked, seq.seq_id, child.seq_id)
    if runs:
        place = scheduler.running.index(seq.request.seqs[-1]) + 1
        scheduler.running[place:place] = children
    seq.request.seqs = [*seq.request.seqs, *children]
    return children
