"""InputBatch: the model runner's state of each sequence between steps.

The scheduler sends only what is new; this is the other side's copy.
(vLLM: vllm/v1/worker/gpu/input_batch.py)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from minivllm.kv.block_table import BlockIds
from minivllm.lora.request import LoadedLoRA
from minivllm.models.mrope import MRopePositions
from minivllm.multimodal.inputs import MultiModalFeatureSpec
from minivllm.sampling.metadata import SamplingMetadata, SamplingState
from minivllm.sampling.rejection_sampler import DrawnDrafts, states_to_verify
from minivllm.scheduling.output import NO_TOKEN, BeamMove, SchedulerOutput


@dataclass(eq=False)
class CachedRequestState(SamplingState):
    """The model runner's state of one sequence."""

    block_ids: BlockIds = ()  # of each KV cache group; none: it does not run
    is_beam: bool = False
    lora: LoadedLoRA | None = None  # its adapter
    drawn_drafts: DrawnDrafts | None = None  # the last ones, if they were drawn
    mm_features: list[MultiModalFeatureSpec] = field(default_factory=list)  # items of its prompt
    positions: MRopePositions | None = None  # None: those of its tokens' places


def _child(parent: CachedRequestState, token_ids: list[int], seed: int) -> CachedRequestState:
    """Make a forked sequence's state: the parent's tokens and blocks, its own seed."""
    return CachedRequestState(
        parent.sampling_params,
        seed,
        token_ids,
        num_prompt_tokens=parent.num_prompt_tokens,
        block_ids=tuple(list(block_ids) for block_ids in parent.block_ids),
        is_beam=parent.is_beam,
        lora=parent.lora,
        mm_features=parent.mm_features,
        positions=parent.positions,
    )


class InputBatch:
    """The sequences that have been scheduled and have not finished, by id."""

    def __init__(self):
        self.states: dict[str, CachedRequestState] = {}
        self.num_prompt_logprobs: dict[str, int] = {}  # of those that asked for any
        self._sampling_metadata: SamplingMetadata | None = None  # of the last step that sampled

    def update(self, scheduler_output: SchedulerOutput) -> None:
        """Apply a SchedulerOutput: drop finished sequences, add new ones, extend block tables.

        The order counts: an id may end and begin again in one plan, and tables change thrice.
        """
        # 1. Finished sequences are forgotten; after a failed step all are, and come again whole.
        if scheduler_output.reset:
            self.states.clear()
            self.num_prompt_logprobs.clear()
            self._sampling_metadata = None
        for seq_id in scheduler_output.finished_req_ids:
            self.states.pop(seq_id, None)  # it may have ended before it ran
            self.num_prompt_logprobs.pop(seq_id, None)
        # 2. Beams take each other's tokens and blocks.
        if scheduler_output.beam_moves:
            self._move_beams(scheduler_output.beam_moves)
        # 3. Preempted ones lose their blocks, but not their tokens. So do resumed ones, whose
        # preemption may be in the same plan.
        resumed = scheduler_output.resumed_req_ids
        for seq_id in (*scheduler_output.preempted_req_ids, *resumed):
            self.states[seq_id].block_ids = ()
        # 4. New ones come.
        for new in scheduler_output.scheduled_new_reqs:
            self.states[new.seq_id] = CachedRequestState(
                new.sampling_params,
                new.seed,
                list(new.token_ids),
                num_prompt_tokens=new.num_prompt_tokens,
                is_beam=new.is_beam,
                lora=new.lora,
                mm_features=new.mm_features,
            )
            params = new.sampling_params
            if params is not None and (num_top := params.prompt_logprobs) is not None:
                self.num_prompt_logprobs[new.seq_id] = num_top
        # 5. A copy takes the place of the shared block. (A resumed table has it already.)
        for copy in scheduler_output.kv_cache_block_copies:
            if copy.seq_id not in resumed:
                self.states[copy.seq_id].block_ids[copy.group][-1] = copy.dst_block_id
        # 6. New blocks are appended; a sequence that had none gets its whole tables.
        for seq_id, new_ids in scheduler_output.new_block_ids.items():
            state = self.states[seq_id]
            if not state.block_ids:
                state.block_ids = tuple([] for _ in new_ids)
            for block_ids, more in zip(state.block_ids, new_ids, strict=True):
                block_ids += more

    def _move_beams(self, moves: list[BeamMove]) -> None:
        """Apply beam moves: replace the tokens drawn here by those that the scheduler chose."""
        parents = {move.parent_id: self.states[move.parent_id] for move in moves}
        for move in moves:
            parent = parents[move.parent_id]
            token_ids = [*parent.token_ids[:-1], move.token_id]
            self.states[move.seq_id] = _child(parent, token_ids, parent.seed)

    def fork(self, forks: dict[str, list[str]]) -> None:
        """Fork siblings of a sequence; the i-th draws with ``seed + i``."""
        for seq_id, child_ids in forks.items():
            parent = self.states[seq_id]
            for i, child_id in enumerate(child_ids, start=1):
                self.states[child_id] = _child(parent, list(parent.token_ids), parent.seed + i)

    def append(self, sampled_token_ids: Mapping[str, list[int]]) -> None:
        """Append the tokens of a step, as the scheduler does on its side."""
        for seq_id, token_ids in sampled_token_ids.items():
            # Where nothing could be sampled the sequence ends; any token does for a plan behind it.
            ended = token_ids[-1] == NO_TOKEN
            self.states[seq_id].token_ids += [0] if ended else token_ids

    def sampling_metadata(
        self, seq_ids: list[str], logits: torch.Tensor, drafts: dict[str, list[int]]
    ) -> SamplingMetadata:
        """The SamplingMetadata of these rows; the last step's, if they are the same.

        Args:
            seq_ids: of the sequences that are sampled; each has a row, and one more per draft.
            logits: of these rows.
            drafts: of those that have any.
        """
        states = [self.states[seq_id] for seq_id in seq_ids]
        metadata = self._sampling_metadata
        # Drafts make a row each, and such rows are never there again. Else the parameters are those
        # of the last step, unless the batch has changed: tensors are kept then.
        if drafts:
            rows: list[SamplingState] = []
            for seq_id, state in zip(seq_ids, states, strict=True):
                mine = drafts.get(seq_id)
                drawn = state.drawn_drafts
                rows += states_to_verify(state, mine, drawn) if mine else [state]
            metadata = SamplingMetadata(rows, logits.shape[-1], logits.device)
            self._sampling_metadata = None
        elif metadata is None or metadata.states != states:
            metadata = SamplingMetadata(states, logits.shape[-1], logits.device)
            self._sampling_metadata = metadata
        return metadata
