"""Decoding: how a request goes on from its sampled tokens. Sampling here, beam search beside it.

The scheduler asks the request's decoding three things: what a sequence must hold back, which
siblings begin when the prompt is computed, and what the sampled tokens make of the sequences.
(vLLM V1 has no such place: it runs n samples as n requests, and beams as a new request per token.)
"""

from __future__ import annotations

from typing import Protocol

from minivllm.records import Sampled
from minivllm.request import Request, RequestStatus, Sequence
from minivllm.scheduling.books import Books
from minivllm.scheduling.output import NO_TOKEN, ModelRunnerOutput, SchedulerOutput


class Decoding(Protocol):
    """How one request decodes. It stands on ``request.decoding``."""

    in_lockstep: bool  # all sequences of the request advance in the same step, or none does

    def num_held_back(self, seq: Sequence, output: SchedulerOutput, token_budget: int) -> int:
        """How many of its last known tokens a sequence must not compute in this step."""

    def forks_at_prompt_end(self, request: Request) -> list[str]:
        """The siblings that get a first token of their own in the step that ends the prompt."""

    def advance(
        self, seqs: list[Sequence], output: ModelRunnerOutput, books: Books
    ) -> list[Sequence]:
        """Append what was sampled, fork, finish. Returns the sequences that got a token."""


class Sampling:
    """n independent samples of one prompt: each goes on by itself."""

    in_lockstep = False

    def num_held_back(self, seq: Sequence, output: SchedulerOutput, token_budget: int) -> int:
        return 0

    def forks_at_prompt_end(self, request: Request) -> list[str]:
        return request.seq_ids[1:] if request.num_forks_to_come else []

    def advance(
        self, seqs: list[Sequence], output: ModelRunnerOutput, books: Books
    ) -> list[Sequence]:
        request = seqs[0].request
        if request.num_forks_to_come:
            seqs = seqs + books.fork(seqs[0], range(1, request.n))
        for seq in seqs:
            sampled = output.sampled_token_ids[seq.seq_id]
            for i, token_id in enumerate(sampled):
                if token_id == NO_TOKEN or not seq.grammar_accepts(token_id):
                    books.finish(seq, RequestStatus.FINISHED_ERROR)
                    del sampled[i:]  # what is left are the tokens that count
                    break
                if seq.grammar is not None:
                    books.undo_log.note(seq.grammar.rollback, 1)
                seq.token_ids.append(token_id)
                if books.trace is not None:
                    books.trace.record(Sampled, seq.seq_id, token_id)
                end = check_stop(seq, books.max_model_len)
                if end is not None:
                    books.finish(seq, *end)
                    del sampled[i + 1 :]
                    break
        return seqs


SAMPLING = Sampling()  # it remembers nothing, so one serves all


def check_stop(seq: Sequence, max_model_len: int) -> tuple[RequestStatus, int | None] | None:
    """End-of-sequence token, stop token, length: the first that holds counts.

    Stop strings are found where text is made; see ``OutputProcessor``. (vLLM: ``check_stop`` in
    vllm/v1/core/sched/utils.py)

    Args:
        seq: has just got a token.
        max_model_len: the longest sequence, prompt and output.

    Returns:
        The status it ends with and its stop reason, or None if it goes on.
    """
    params, token_id = seq.request.sampling_params, seq.token_ids[-1]
    if token_id in seq.request.eos_token_ids and not params.ignore_eos:
        return RequestStatus.FINISHED_STOPPED, None
    if token_id in params.stop_reason_ids:
        return RequestStatus.FINISHED_STOPPED, token_id
    if seq.num_output_tokens == params.max_tokens or seq.num_tokens >= max_model_len:
        return RequestStatus.FINISHED_LENGTH_CAPPED, None
    return None
