"""give_back_rejected: what verified drafts mean for the scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from minivllm.metrics.spec_decode import SpecDecodingStats
from minivllm.request import RequestStatus, Sequence
from minivllm.trace import Trace
from minivllm.trace.records import Verified


def give_back_rejected(
    seqs: Iterable[Sequence],
    drafted: Mapping[str, list[int]],
    sampled: Mapping[str, list[int]],
    stats: SpecDecodingStats,
    trace: Trace | None,
) -> None:
    """Count accepted drafts, and take rejected ones off the computed tokens.

    Args:
        seqs: the sequences that got tokens in this step.
        drafted: the drafts that were verified, by sequence id.
        sampled: the tokens that each got: its accepted drafts, and one more.
        stats: gets the counts.
        trace: listens, if given.
    """
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
