"""SchedulerOutput and ModelRunnerOutput: all that passes between scheduler and model runner.

They hold ids, integers and what is new; never a live ``Request``. So the same output could be sent
to several workers, or to another process. (vLLM: vllm/v1/core/sched/output.py, vllm/v1/outputs.py)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from minivllm.kv.block_table import BlockIds, KVCacheBlockCopy
from minivllm.kv.swap_space import KVCacheBlockSwap
from minivllm.lora.request import LoadedLoRA
from minivllm.multimodal.inputs import MultiModalFeatureSpec
from minivllm.pooling_params import PoolingParams
from minivllm.request import Sequence
from minivllm.trace.rank_work import RankWork

if TYPE_CHECKING:
    import numpy as np

NO_TOKEN = -1  # sampled where masks and the user's functions leave nothing to sample


@dataclass(frozen=True)
class NewRequestData:
    """A sequence that the model runner does not know, whole."""

    seq_id: str
    token_ids: list[int]  # the prompt, and the output if it is computed again after a failed step
    num_prompt_tokens: int
    sampling_params: Any  # a SamplingParams; None with pooling parameters
    seed: int  # with a position it gives the number that draws the token there
    is_beam: bool = False  # beams are searched without drafts
    lora: LoadedLoRA | None = None  # its adapter; None: the base model
    pooling_params: PoolingParams | None = None  # of a request that samples nothing
    mm_features: list[MultiModalFeatureSpec] = field(default_factory=list)  # items of its prompt

    @classmethod
    def from_sequence(cls, seq: Sequence) -> NewRequestData:
        """Make the data of a sequence: its tokens so far, and how it is sampled."""
        request = seq.request
        return cls(
            seq.seq_id,
            list(seq.token_ids),
            seq.num_prompt_tokens,
            request.sampling_params,
            request.seed + seq.index,
            is_beam=request.beam_params is not None,
            lora=request.lora,
            pooling_params=request.pooling_params,
            mm_features=request.mm_features,
        )


@dataclass(frozen=True)
class BeamMove:
    """A beam's move: ``seq_id`` becomes ``parent_id`` before the last step, plus ``token_id``."""

    seq_id: str
    parent_id: str
    token_id: int


@dataclass(frozen=True)
class GrammarOutput:
    """Bitmask of the tokens that grammars allow next, and the sequences of its rows."""

    structured_output_request_ids: list[str]  # of each row; one with drafts has several
    grammar_bitmask: np.ndarray  # int32 [rows, words], a bit per token


@dataclass
class SchedulerOutput:
    """The plan of one step. One flat batch: prefill chunks and decodes side by side.

    Sequence ``s`` computes its positions ``num_computed_tokens[s]`` up to
    ``num_computed_tokens[s] + num_scheduled_tokens[s]``, exclusive. The dicts are in batch order.
    """

    reset: bool = False  # a step has failed: forget all sequences, they come again whole
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    num_computed_tokens: dict[str, int] = field(default_factory=dict)
    # the drafts among them, the last ones of a sequence; none, no entry
    scheduled_spec_decode_tokens: dict[str, list[int]] = field(default_factory=dict)
    # blocks to append to the sequence's tables, a list for each KV cache group; for one that was
    # not running: its whole tables
    new_block_ids: dict[str, BlockIds] = field(default_factory=dict)
    # adapters to copy from host memory into slots, before the forward pass
    lora_loads: list[tuple[LoadedLoRA, int]] = field(default_factory=list)
    # identifiers whose encoder outputs are to be forgotten, first of all
    free_encoder_mm_hashes: list[str] = field(default_factory=list)
    # items to be encoded before the forward pass: indices into the sequence's ``mm_features``; one
    # of a sequence that gave way is there if others need it
    scheduled_encoder_inputs: dict[str, list[int]] = field(default_factory=dict)
    swaps_out: list[KVCacheBlockSwap] = field(default_factory=list)  # device to host, first of all
    swaps_in: list[KVCacheBlockSwap] = field(default_factory=list)  # host to device, then
    # before the forward pass
    kv_cache_block_copies: list[KVCacheBlockCopy] = field(default_factory=list)
    # the prompt is computed in this step: draw a token for each child, too, and let it begin
    forks: dict[str, list[str]] = field(default_factory=dict)
    scheduled_new_reqs: list[NewRequestData] = field(default_factory=list)
    # with pipeline stages: known tokens from the first to be computed on, for the earlier stages
    new_token_ids: dict[str, list[int]] = field(default_factory=dict)
    resumed_req_ids: list[str] = field(default_factory=list)  # back from a preemption
    preempted_req_ids: list[str] = field(default_factory=list)  # their blocks are gone
    finished_req_ids: list[str] = field(default_factory=list)  # since the last plan: forget them
    beam_moves: list[BeamMove] = field(default_factory=list)  # what the last step's beams became
    has_structured_output_requests: bool = False  # a sequence in the step has a grammar
    grammar_output: GrammarOutput | None = None  # of the sequences that get a token in this step

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())

    def finish(self, seq_id: str) -> None:
        """Let the runner forget a sequence that has finished since the last plan."""
        self.finished_req_ids.append(seq_id)
        if self.beam_moves:
            self.beam_moves = [move for move in self.beam_moves if move.seq_id != seq_id]

    def remove(self, seq_id: str) -> None:
        """Remove a sequence from the step, if it is in it."""
        self.num_scheduled_tokens.pop(seq_id, None)
        self.num_computed_tokens.pop(seq_id, None)
        self.new_block_ids.pop(seq_id, None)
        self.scheduled_spec_decode_tokens.pop(seq_id, None)
        self.kv_cache_block_copies[:] = [
            copy for copy in self.kv_cache_block_copies if copy.seq_id != seq_id
        ]
        if seq_id in self.resumed_req_ids:
            self.resumed_req_ids.remove(seq_id)
        new = self.scheduled_new_reqs
        new[:] = [data for data in new if data.seq_id != seq_id]


class TokenLogprobs(NamedTuple):
    """Log probabilities (natural) of a token and of the most likely at its position, raw model."""

    token_ids: list[int]  # the token itself, then the k best, the best first
    logprobs: list[float]  # in the same order
    rank: int  # how many tokens are at least as likely: 1 for the best, unless it has equals

    @property
    def best(self) -> Iterator[tuple[int, float]]:
        """The most likely tokens and their log probabilities, in descending order."""
        return zip(self.token_ids[1:], self.logprobs[1:], strict=True)


@dataclass
class ModelRunnerOutput:
    """Result of a step: sampled tokens, logprobs and drafts; of a pooling model tensors."""

    # the next tokens of every sequence whose last known token was computed, and of the siblings
    # that begin there: one each, unless several are guessed and verified in a step
    sampled_token_ids: dict[str, list[int]] = field(default_factory=dict)
    # one for each of these tokens, for the sequences that asked for it
    logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    # what a draft model guesses to come behind them
    draft_token_ids: dict[str, list[int]] = field(default_factory=dict)
    # by sequence and by position: of the prompt's tokens that this step has come to
    prompt_logprobs: dict[str, dict[int, TokenLogprobs]] = field(default_factory=dict)
    # by sequence: float32 numbers of those whose prompt is complete; they sample nothing
    pooler_output: dict[str, np.ndarray] = field(default_factory=dict)
    # what each rank did, if several do and a trace is written
    rank_work: list[RankWork] = field(default_factory=list)
