"""Checkpoint: the requests as they are before a step's tokens are appended."""

from __future__ import annotations

from collections.abc import Iterable

from minivllm.request import Request, RequestStatus, Sequence


class Checkpoint:
    """Tokens of running sequences before an update: all else can be computed again.

    Lists that an update replaces are kept as they are, and of those that it appends to, the length.
    """

    def __init__(self, running: Iterable[Sequence]):
        self._seqs = [(s, len(s.token_ids), s.cumulative_logprob, s.request.seqs) for s in running]
        searches = {s.request.decoding for s, *_ in self._seqs if s.request.decoding.in_lockstep}
        self._completed = [(search, search.completed) for search in searches]

    def restore(self) -> list[Request]:
        """Take back all that was appended, forked and finished since. Returns these requests."""
        for seq, num_tokens, cumulative_logprob, seqs in self._seqs:
            del seq.token_ids[num_tokens:]
            seq.cumulative_logprob = cumulative_logprob
            seq.status, seq.stop_reason = RequestStatus.RUNNING, None
            seq.request.seqs = seqs
        for search, completed in self._completed:
            search.completed = completed
        return [seq.request for seq, *_ in self._seqs]
