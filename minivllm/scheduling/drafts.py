"""Drafts in the scheduler: those that a step verifies, and the rejected ones behind it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from minivllm.metrics.spec_decode import SpecDecodingStats
from minivllm.request import RequestStatus, Sequence
from minivllm.scheduling.output import SchedulerOutput
from minivllm.trace import Trace
from minivllm.trace.records import Verified


def set_drafts(sequences: Mapping[str, Sequence], drafts: Mapping[str, list[int]]) -> None:
    """Set the drafts that the next step verifies, of those sequences that still run."""
    for seq_id, token_ids in drafts.items():
        seq = sequences.get(seq_id)
        if seq is not None and seq.status == RequestStatus.RUNNING:
            seq.spec_token_ids = token_ids


def add_drafts(seq: Sequence, num_new: int, output: SchedulerOutput) -> None:
    """Add a sequence's drafts to the step, those among its next ``num_new`` tokens."""
    num_drafts = seq.num_computed_tokens + num_new - seq.num_tokens
    if num_drafts > 0:
        output.scheduled_spec_decode_tokens[seq.seq_id] = seq.spec_token_ids[:num_drafts]
    seq.spec_token_ids = []


def give_back_rejected(
    seqs: Iterable[Sequence],
    drafted: Mapping[str, list[int]],
    sampled: Mapping[str, list[int]],
    num_drafts: int,
    trace: Trace | None,
) -> SpecDecodingStats:
    """Count accepted drafts, and take rejected ones off the computed tokens. Returns the counts.

    Args:
        seqs: the sequences that got tokens in this step.
        drafted: the drafts that were verified, by sequence id.
        sampled: the tokens that each got: its accepted drafts, and one more.
        num_drafts: the most that a sequence has.
        trace: listens, if given.
    """
    stats = SpecDecodingStats(num_drafts)
    for seq in seqs:
        drafts = drafted.get(seq.seq_id)
        if not drafts:
            continue
        num_accepted = len(sampled[seq.seq_id]) - 1
        stats.observe_draft(len(drafts), num_accepted)
        # K and V of a rejected one are where the next token's will be; after a preemption nothing
        # is computed
        if seq.status == RequestStatus.RUNNING:
            seq.num_computed_tokens -= len(drafts) - num_accepted
        if trace is not None:
            trace.record(Verified, seq.seq_id, tuple(drafts), num_accepted)
    return stats
