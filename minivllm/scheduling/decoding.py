"""Decoding: what sampled tokens do to a request's sequences. Sampling here; beams.py beside it.

The scheduler asks the request's decoding three things: what a sequence must hold back, which
siblings begin when the prompt is computed, and what the sampled tokens make of the sequences.
(vLLM V1 has no such place: it runs n samples as n requests, and beams as a new request per token.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from minivllm.records import Sampled
from minivllm.request import RequestStatus, Sequence
from minivllm.scheduling.output import NO_TOKEN, ModelRunnerOutput, SchedulerOutput

if TYPE_CHECKING:
    from minivllm.scheduling.books import Books


class Decoding(Protocol):
    """Interface of a decoding method; each request has one as ``request.decoding``."""

    in_lockstep: bool  # all sequences of the request advance in the same step, or none does

    def num_held_back(self, seq: Sequence, output: SchedulerOutput, token_budget: int) -> int:
        """Number of last known tokens that a sequence must not compute in this step."""

    def forks_at_prompt_end(self, seq: Sequence) -> dict[str, list[str]]:
        """Siblings to fork in the step that ends the prompt, each with a first token of its own."""

    def advance(
        self, seqs: list[Sequence], output: ModelRunnerOutput, books: Books
    ) -> list[Sequence]:
        """Append what was sampled, fork, finish. Returns the sequences that got a token."""


class Sampling:
    """Sampling: n independent samples of one prompt."""

    in_lockstep = False

    def num_held_back(self, seq: Sequence, output: SchedulerOutput, token_budget: int) -> int:
        return 0

    def forks_at_prompt_end(self, seq: Sequence) -> dict[str, list[str]]:
        return {seq.seq_id: seq.request.seq_ids[1:]}

    def advance(
        self, seqs: list[Sequence], output: ModelRunnerOutput, books: Books
    ) -> list[Sequence]:
        updated = []
        for seq in seqs:
            updated.append(seq)
            if seq.request.n > len(seq.request.seqs):
                updated += books.fork(seq, range(1, seq.request.n))
        sampled, max_model_len = output.sampled_token_ids, books.max_model_len
        for seq in updated:
            token_ids, num_kept = sampled[seq.seq_id], 0
            for token_id in token_ids:
                if token_id == NO_TOKEN or (
                    seq.grammar is not None and not self._grammar_accepts(seq, token_id, books)
                ):
                    books.finish(seq, RequestStatus.FINISHED_ERROR)
                    break
                num_kept += 1
                seq.token_ids.append(token_id)
                if books.trace is not None:
                    books.trace.record(Sampled, seq.seq_id, token_id)
                end = check_stop(seq, max_model_len)
                if end is not None:
                    books.finish(seq, *end)
                    break
            del token_ids[num_kept:]  # what is left are the tokens that count
        return updated

    def _grammar_accepts(self, seq: Sequence, token_id: int, books: Books) -> bool:
        accepts = seq.grammar.accept_tokens([token_id])
        if accepts:
            books.undo_log.note(seq.grammar.rollback, 1)
        return accepts


SAMPLING = Sampling()  # it has no state, so one object serves all requests


def check_stop(seq: Sequence, max_model_len: int) -> tuple[RequestStatus, int | None] | None:
    """Stop conditions: end-of-sequence token, stop token, length; the first that holds counts.

    Stop strings are found where text is made; see ``OutputProcessor``. (vLLM: ``check_stop`` in
    vllm/v1/core/sched/utils.py)

    Args:
        seq: has just got a token.
        max_model_len: the longest sequence, prompt and output.

    Returns:
        The status it ends with and its stop reason, or None if it goes on.
    """
    request, token_ids = seq.request, seq.token_ids
    params, token_id, num_tokens = request.sampling_params, token_ids[-1], len(token_ids)
    if token_id in request.eos_token_ids and not params.ignore_eos:
        return RequestStatus.FINISHED_STOPPED, None
    if token_id in params.stop_reason_ids:
        return RequestStatus.FINISHED_STOPPED, token_id
    if num_tokens - seq.num_prompt_tokens == params.max_tokens or num_tokens >= max_model_len:
        return RequestStatus.FINISHED_LENGTH_CAPPED, None
    return None
