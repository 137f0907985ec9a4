"""Beam search: the ``k`` most likely continuations of a prompt, by forking and freeing.

A step gives every beam its ``2k`` likeliest next tokens. Of all these candidates the best ``k`` go
on: a beam with several of them is forked, one with none gives its blocks back. A candidate that
ends the text is set aside, complete. (vLLM: vllm/entrypoints/generate/beam_search/, which
sends every beam as a new request in every step. Here they stay inside the engine, as in V0.)
(notebook 04b)
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from itertools import islice
from operator import itemgetter
from typing import Protocol

from minivllm.request import Request, RequestStatus, Sequence
from minivllm.scheduling.output import BeamMove, SchedulerOutput, TokenLogprobs


class SequenceUpdates(Protocol):
    """Changes that a search asks for; the Scheduler makes them."""

    next_output: SchedulerOutput  # the runner is told in the next plan what became of a beam

    def append(self, seq: Sequence, token_id: int) -> None: ...

    def fork(self, seq: Sequence, indices: Iterable[int]) -> list[Sequence]: ...

    def finish(self, seq: Sequence, status: RequestStatus) -> None: ...


class BeamSearch:
    """The beams of one request, and the choice of those that go on.

    Args:
        request: has ``beam_params``: how many beams, and how they are scored.
        max_model_len: the longest sequence, prompt and output.
    """

    def __init__(self, request: Request, max_model_len: int):
        self.request = request
        params = request.beam_params
        assert params is not None, "it is searched by beams"
        self.width = params.beam_width
        self.length_penalty = params.length_penalty
        self.eos_token_ids = frozenset() if params.ignore_eos else request.eos_token_ids
        self.max_len = min(len(request.prompt_token_ids) + params.max_tokens, max_model_len)
        self.completed: list[Sequence] = []  # the best of them, at most ``width``

    def score(self, seq: Sequence) -> float:
        """Score of a beam: log probability / length ** penalty, a final end token not counted."""
        return self._score(seq.cumulative_logprob, seq.num_tokens - self._is_complete(seq))

    def choose(
        self, live: list[Sequence], logprobs: Mapping[str, TokenLogprobs]
    ) -> dict[Sequence, list[tuple[int, float]]]:
        """Set aside what is complete; say which beams go on.

        Args:
            live: the beams, all of one length.
            logprobs: for each beam's id its ``2 * width`` best next tokens (enough that ``width``
                remain whatever ends the text).

        Returns:
            For each beam that goes on the tokens it goes on with, and the cumulative log
            probabilities with these; ``width`` tokens in all.
        """
        ranked = [
            (seq.cumulative_logprob + logprob, seq, token_id)
            for seq in live
            for token_id, logprob in logprobs[seq.seq_id].best
        ]
        ranked.sort(key=itemgetter(0), reverse=True)
        going_on: dict[Sequence, list[tuple[int, float]]] = {}
        num_left = self.width
        for cumulative, seq, token_id in ranked:
            if token_id in self.eos_token_ids:
                self._set_aside(seq, token_id, cumulative)
            elif num_left > 0:
                going_on.setdefault(seq, []).append((token_id, cumulative))
                num_left -= 1
        return going_on

    def is_over(self, live: list[Sequence]) -> bool:
        """True if the beams are as long as they may be, or none could still be among the best.

        Log probabilities only fall, so no beam's score can pass what its present one would give at
        the most favourable length.
        """
        if not live:  # each of the best candidates ended the text
            return True
        length = live[0].num_tokens
        if length >= self.max_len:
            return True
        if len(self.completed) < self.width:
            return False
        likeliest = max(seq.cumulative_logprob for seq in live)
        best_to_come = max(self._score(likeliest, n) for n in (length, self.max_len))
        return self.score(self.completed[-1]) >= best_to_come

    def status_at_end(self, seq: Sequence) -> RequestStatus:
        """Final status of a beam that is not complete when the search is over."""
        if seq.num_tokens >= self.max_len:
            return RequestStatus.FINISHED_LENGTH_CAPPED
        return RequestStatus.FINISHED_DROPPED

    def best(self, live: list[Sequence]) -> list[Sequence]:
        """The ``width`` best beams, complete or not, the best first."""
        return sorted(self.completed + live, key=self.score, reverse=True)[: self.width]

    def _set_aside(self, seq: Sequence, token_id: int, cumulative: float) -> None:
        complete = seq.fork(seq.index)
        complete.token_ids.append(token_id)
        complete.cumulative_logprob = cumulative
        complete.status = RequestStatus.FINISHED_STOPPED
        self.completed = self.best([complete])

    def _is_complete(self, seq: Sequence) -> bool:
        return seq.token_ids[-1] in self.eos_token_ids

    def _score(self, cumulative_logprob: float, length: int) -> float:
        return cumulative_logprob / length**self.length_penalty

    # -- what the scheduler asks -------------------------------------------------------------------

    def num_held_back(self, seq: Sequence, scheduled: Container[str], num_more: int) -> int:
        """Return 1 for a beam whose last token must wait, until all beams can compute theirs.

        Args:
            seq: one of the beams.
            scheduled: ids of sequences that are in the step.
            num_more: sequences for whose next token the step has room.
        """
        live = self.request.unfinished_seqs
        if len(live) == 1:
            return 0
        some_lack_more = any(s.num_tokens - s.num_computed_tokens > 1 for s in live)
        if seq is live[0]:
            together = num_more >= len(live)
        else:
            together = live[0].seq_id in scheduled
        return 0 if together and not some_lack_more else 1

    def advance(self, logprobs: Mapping[str, list[TokenLogprobs]], update: SequenceUpdates) -> None:
        """Let the best candidates go on: fork beams with several, finish those with none.

        Args:
            logprobs: of a step, by sequence id; each has one entry here.
            update: makes the changes.
        """
        request = self.request
        live = request.unfinished_seqs
        going_on = self.choose(live, {seq.seq_id: logprobs[seq.seq_id][0] for seq in live})
        for seq in live:
            if seq not in going_on:
                update.finish(seq, RequestStatus.FINISHED_DROPPED)
        # A beam's id is its place among the k, which another may take.
        request.seqs = [seq for seq in live if seq in going_on]
        places = {seq.index for seq in going_on}
        free = (index for index in range(request.n) if index not in places)
        for parent, options in going_on.items():
            beams = [parent]
            if len(options) > 1:
                beams += update.fork(parent, list(islice(free, len(options) - 1)))
            for seq, (token_id, cumulative) in zip(beams, options, strict=True):
                seq.cumulative_logprob = cumulative
                move = BeamMove(seq.seq_id, parent.seq_id, token_id)
                update.next_output.beam_moves.append(move)
                update.append(seq, token_id)
        live = request.unfinished_seqs
        if self.is_over(live):
            for seq in live:
                update.finish(seq, self.status_at_end(seq))
            request.seqs = self.best(live)
