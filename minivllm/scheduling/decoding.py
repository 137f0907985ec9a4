"""Decoding: the rule by which sampled tokens grow a request. Sampling here; beams.py beside it.

The scheduler asks the request's decoding three things: what a sequence must hold back, which
siblings begin when the prompt is computed, and what to append, fork and finish for the sampled
tokens. A decoding only says it; the scheduler does it.
(vLLM V1 has no such place: it runs n samples as n requests, and beams as a new request per token.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from minivllm.config import SchedulerConfig
from minivllm.request import RequestStatus, Sequence
from minivllm.scheduling.output import NO_TOKEN, ModelRunnerOutput, SchedulerOutput

# Actions: what to do with a sequence. Each is a plain tuple (kind, sequence, value), since a step
# has one for every token.
APPEND = "append"  # value: the token id
FORK = "fork"  # value: the indices of its new siblings
MOVE = "move"  # value: a BeamMove; an APPEND of the token chosen for it follows
FINISH = "finish"  # value: its status and stop reason
Action = tuple[str, Sequence, Any]


class Decoding(Protocol):
    """Interface of a decoding method; each request has one as ``request.decoding``."""

    in_lockstep: bool  # all sequences of the request advance in the same step, or none does

    def num_held_back(self, seq: Sequence, output: SchedulerOutput, token_budget: int) -> int:
        """Return how many of its last known tokens a sequence must not compute in this step."""

    def forks_at_prompt_end(self, seq: Sequence) -> dict[str, list[str]]:
        """Return siblings to fork in the step that ends the prompt, by the id they fork from."""

    def advance(self, seqs: list[Sequence], output: ModelRunnerOutput) -> Iterator[Action]:
        """Yield actions, in order; each is done before the next one is asked for."""


def make_decoding(config: SchedulerConfig) -> Decoding:
    """Make the decoding of all requests but beam searches."""
    if config.num_sampled_tokens_per_step == 0:
        return Pooling()
    return Sampling(config.max_model_len)


class Sampling:
    """Sampling: n independent samples of one prompt, each up to ``max_model_len`` tokens long."""

    in_lockstep = False

    def __init__(self, max_model_len: int):
        self.max_model_len = max_model_len

    def num_held_back(self, seq: Sequence, output: SchedulerOutput, token_budget: int) -> int:
        return 0

    def forks_at_prompt_end(self, seq: Sequence) -> dict[str, list[str]]:
        return {seq.seq_id: seq.request.seq_ids[1:]}

    def advance(self, seqs: list[Sequence], output: ModelRunnerOutput) -> Iterator[Action]:
        """Fork samples where a prompt ends; append each token, and finish where one ends it."""
        samples = []
        for seq in seqs:
            samples.append(seq)
            if seq.request.n > len(seq.request.seqs):
                yield FORK, seq, range(1, seq.request.n)
                samples += seq.request.seqs[1:]
        max_model_len = self.max_model_len
        for seq in samples:
            token_ids, num_kept = output.sampled_token_ids[seq.seq_id], 0
            end: tuple[RequestStatus, int | None] | None
            for token_id in token_ids:
                if token_id == NO_TOKEN or (
                    seq.grammar is not None and not seq.grammar.accept_tokens([token_id])
                ):
                    end = RequestStatus.FINISHED_ERROR, None
                else:
                    num_kept += 1
                    yield APPEND, seq, token_id
                    end = check_stop(seq, max_model_len)
                if end is not None:
                    del token_ids[num_kept:]  # those that are left count
                    yield FINISH, seq, end
                    break


class Pooling:
    """Pooling: a request ends in the step that completes its prompt, and gets no token."""

    in_lockstep = False

    def num_held_back(self, seq: Sequence, output: SchedulerOutput, token_budget: int) -> int:
        return 0

    def forks_at_prompt_end(self, seq: Sequence) -> dict[str, list[str]]:
        return {}

    def advance(self, seqs: list[Sequence], output: ModelRunnerOutput) -> Iterator[Action]:
        """Finish each sequence whose prompt is complete."""
        for seq in seqs:
            yield FINISH, seq, (RequestStatus.FINISHED_STOPPED, None)


def check_stop(seq: Sequence, max_model_len: int) -> tuple[RequestStatus, int | None] | None:
    """Check the last token: end of sequence, stop token, length; the first counts.

    Stop strings are found where text is made; see ``OutputProcessor``. (vLLM: ``check_stop`` in
    vllm/v1/core/sched/utils.py)

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
