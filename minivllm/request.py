"""Request: one prompt with its parameters, and the Sequences of tokens that it grows into."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from minivllm.lora.request import LoadedLoRA, LoRARequest
from minivllm.multimodal.inputs import MultiModalFeatureSpec
from minivllm.outputs import RequestMetrics
from minivllm.pooling_params import PoolingParams
from minivllm.request_protocols import Beams, Grammar
from minivllm.sampling_params import BeamSearchParams, SamplingParams


class RequestStatus(IntEnum):
    """Status of a sequence (vLLM: vllm/v1/request.py). Above PREEMPTED it is finished."""

    WAITING = 0
    WAITING_FOR_REMOTE_KVS = 1  # it holds blocks, into which K and V come from elsewhere
    RUNNING = 2
    PREEMPTED = 3
    FINISHED_STOPPED = 4
    FINISHED_LENGTH_CAPPED = 5
    FINISHED_ABORTED = 6
    FINISHED_DROPPED = 7  # a beam that gave way to better ones
    FINISHED_ERROR = 8  # nothing was left to sample, or its K and V did not come

    @property
    def is_finished(self) -> bool:
        return self > RequestStatus.PREEMPTED

    @property
    def finish_reason(self) -> str | None:
        """The reason that a CompletionOutput gives; None until it is finished."""
        return FINISH_REASONS.get(self)


FINISH_REASONS = {
    RequestStatus.FINISHED_STOPPED: "stop",
    RequestStatus.FINISHED_LENGTH_CAPPED: "length",
    RequestStatus.FINISHED_ABORTED: "abort",
    RequestStatus.FINISHED_DROPPED: "dropped",
    RequestStatus.FINISHED_ERROR: "error",
}


class Sequence:
    """One growing list of tokens, and how many of them have their K and V in the cache.

    The whole scheduler is this subtraction: ``num_tokens - num_computed_tokens`` are still to be
    computed. For a new prompt that is all of it; for a decode it is 1; after a preemption it is
    everything again. There are no phases. Drafts of speculative decoding are further tokens that
    are not yet computed; they are never among ``token_ids`` before they have been verified.

    (The word is V0's. vLLM V1 has no sequences and no forks: it runs ``n`` samples as ``n``
    requests that share their prompt through the prefix cache.)
    """

    __slots__ = (
        "__weakref__",
        "block_hashes",
        "cumulative_logprob",
        "grammar",
        "index",
        "num_computed_tokens",
        "num_in_flight_tokens",
        "num_output_placeholders",
        "num_prompt_tokens",
        "request",
        "seq_id",
        "spec_token_ids",
        "status",
        "stop_reason",
        "token_ids",
    )  # fmt: skip

    def __init__(self, request: Request, index: int):
        self.seq_id = request.seq_id(index)
        self.index = index  # which of the request's samples this is
        self.request = request
        self.token_ids: list[int] = list(request.prompt_token_ids)  # prompt, then output
        self.num_prompt_tokens = len(self.token_ids)
        self.num_computed_tokens = 0  # those of steps that are planned included
        self.num_in_flight_tokens = 0  # scheduled by steps whose output has not come yet
        self.num_output_placeholders = 0  # tokens on their way, behind the known ones
        self.spec_token_ids: list[int] = []  # drafts: guessed, not yet verified
        self.block_hashes: list[bytes] = []  # of its full blocks, as far as asked for
        self.cumulative_logprob = 0.0  # of its output; only beams need it
        self.status = RequestStatus.WAITING
        self.stop_reason: int | str | None = None
        self.grammar = request.grammar and request.grammar.fork()  # after its last token

    def fork(self, index: int) -> Sequence:
        """Make another sample of the same request, with the same tokens so far."""
        child = Sequence(self.request, index)
        child.token_ids = list(self.token_ids)
        # the child shares the blocks; drafts and tokens in flight stay the parent's
        child.num_computed_tokens = self.num_computed_tokens
        child.block_hashes = list(self.block_hashes)
        child.cumulative_logprob = self.cumulative_logprob
        child.status = self.status
        child.grammar = self.grammar and self.grammar.fork()
        return child

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def skip_reading_prefix_cache(self) -> bool:
        """True until the prompt has been computed once, if the request forbids cache hits."""
        request = self.request
        if request.pooling_params is not None:
            return bool(request.pooling_params.skip_reading_prefix_cache)
        params = request.sampling_params
        asked = params.skip_reading_prefix_cache or params.prompt_logprobs is not None
        return asked and self.num_output_tokens == 0

    def __repr__(self) -> str:
        return (
            f"Sequence({self.seq_id!r}, {self.status.name}, "
            f"computed {self.num_computed_tokens} of {self.num_tokens} tokens)"
        )


class Request:
    """A prompt, its sampling parameters, and the sequences it grows into.

    Until its prompt is computed it is one sequence; then it forks into ``n``, samples or beams. One
    with pooling parameters ends there: it samples nothing.

    Args:
        request_id: any string that is not in use.
        prompt_token_ids: at least one token id.
        sampling_params: how to sample and when to stop; None with pooling parameters.
        eos_token_ids: the model's end-of-sequence tokens.
        seed: of its draws; sample ``i`` has ``seed + i``.
        prompt: the text behind the ids, if there was one.
        arrival_time: seconds of ``time.monotonic()``.
        priority: the smaller, the more important; 0 unless the policy is "priority".
        cache_salt: only requests with the same salt share cached blocks.
        beam_params: for a beam search; ``sampling_params`` are then those of one beam.
        lora_request: the adapter it asks for; None: the base model.
        kv_transfer_params: what it asks of a KV connector; None: nothing.
        pooling_params: what it wants of its hidden states; None with sampling parameters.
        mm_features: pictures and other items whose placeholders are in the prompt, by offset.
    """

    sampling_params: Any  # a SamplingParams, which those who sample need not ask for

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        sampling_params: SamplingParams | None,
        eos_token_ids: frozenset[int] = frozenset(),
        seed: int = 0,
        prompt: str | None = None,
        arrival_time: float = 0.0,
        priority: int = 0,
        cache_salt: str | None = None,
        beam_params: BeamSearchParams | None = None,
        lora_request: LoRARequest | None = None,
        pooling_params: PoolingParams | None = None,
        kv_transfer_params: dict[str, Any] | None = None,
        mm_features: list[MultiModalFeatureSpec] | None = None,
    ):
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_token_ids = prompt_token_ids
        self.sampling_params = sampling_params
        self.pooling_params = pooling_params
        self.mm_features = mm_features or []
        self.eos_token_ids = eos_token_ids
        self.seed = seed
        self.arrival_time = arrival_time
        self.arrival_index = -1  # set when it is added: 0, 1, 2, ...
        self.priority = priority
        self.cache_salt = cache_salt
        self.beam_params = beam_params
        self.lora_request = lora_request
        self.lora: LoadedLoRA | None = None  # the same adapter, when its files have been read
        self.n = 1 if sampling_params is None else sampling_params.n
        if beam_params is not None:
            self.n = beam_params.beam_width
        self.beam_search: Beams | None = None  # the scheduler makes it, for beam_params
        self.metrics = RequestMetrics(arrival_time)
        self.num_cached_tokens: int | None = None  # the hit of its first scheduling
        self.num_external_computed_tokens = 0  # those of it that came from another engine
        self.num_preemptions = 0
        self.kv_transfer_params = kv_transfer_params
        self.kv_transfer_answer: dict[str, Any] | None = None  # for the engine that goes on
        self.grammar: Grammar | None = None  # at its start, if the text must have a form
        self.seqs = [Sequence(self, 0)]

    def rename(self, request_id: str) -> None:
        """Change the request's id, before it is added to an engine."""
        self.request_id = self.seqs[0].seq_id = request_id

    def restart(self) -> None:
        """Let all sequences wait, to be computed again from their tokens, after a failed step."""
        seqs = self.unfinished_seqs
        # one that ran has lost its blocks, as by a preemption, and counts as one
        self.num_preemptions += any(seq.status == RequestStatus.RUNNING for seq in seqs)
        if not any(seq.num_output_tokens for seq in self.seqs):
            self.num_cached_tokens = None  # its first scheduling is still to come
        for seq in seqs:
            seq.status = RequestStatus.WAITING
            seq.spec_token_ids = []
            seq.num_computed_tokens = 0
            seq.num_in_flight_tokens = 0
            seq.num_output_placeholders = 0
            if self.grammar is not None:
                # its place behind the prompt, and then behind each token so far
                seq.grammar = self.grammar.fork()
                seq.grammar.accept_tokens(seq.output_token_ids)

    @property
    def is_in_flight(self) -> bool:
        """True while a step is under way that computes some of it, or its K and V are."""
        remote = RequestStatus.WAITING_FOR_REMOTE_KVS
        return any(s.num_in_flight_tokens or s.status == remote for s in self.unfinished_seqs)

    def seq_id(self, index: int) -> str:
        """Sequence id of sample ``index``; the first sample has the request's id."""
        return self.request_id if index == 0 else f"{self.request_id}/{index}"

    @property
    def seq_ids(self) -> list[str]:
        """Sequence ids of all samples, those to be forked included."""
        return [self.seq_id(index) for index in range(self.n)]

    @property
    def num_forks_to_come(self) -> int:
        return self.n - len(self.seqs)

    @property
    def may_draft(self) -> bool:
        """True if its sequences may have drafts: no beam, and no fork to come."""
        return self.beam_params is None and not self.num_forks_to_come

    @property
    def unfinished_seqs(self) -> list[Sequence]:
        return [seq for seq in self.seqs if not seq.status.is_finished]
