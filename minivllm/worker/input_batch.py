"""InputBatch: what the runner remembers of each sequence between steps.

The scheduler sends only what is new; this is the other side's copy. Random generators live here.
(vLLM: vllm/v1/worker/gpu_input_batch.py)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import torch

from minivllm.sampling.metadata import SamplingMetadata, SamplingState
from minivllm.scheduling.output import BeamMove, SchedulerOutput


@dataclass(eq=False)
class CachedRequestState(SamplingState):
    """One sequence as the runner knows it."""

    seed: int  # of its generator
    block_ids: list[int] = field(default_factory=list)


def _child(parent: CachedRequestState, token_ids: list[int], seed: int) -> CachedRequestState:
    """Shares the parent's past and blocks; draws with a generator of its own."""
    return CachedRequestState(
        parent.sampling_params,
        Random(seed),
        token_ids,
        parent.num_prompt_tokens,
        seed,
        list(parent.block_ids),
    )


class InputBatch:
    """The sequences that have been scheduled and have not finished, by id."""

    def __init__(self):
        self.states: dict[str, CachedRequestState] = {}
        self._sampling_metadata: SamplingMetadata | None = None  # of the last step that sampled

    def update(self, scheduler_output: SchedulerOutput) -> None:
        """Follow a plan: forget, begin, and let block tables grow."""
        for seq_id in scheduler_output.finished_req_ids:
            self.states.pop(seq_id, None)
        self._move_beams(scheduler_output.beam_moves)
        for (
            seq_id
        ) in scheduler_output.preempted_req_ids:  # tokens and generator stay: it will come back
            self.states[seq_id].block_ids = []
        for new in scheduler_output.scheduled_new_reqs:
            prompt = list(new.token_ids)
            self.states[new.seq_id] = CachedRequestState(
                new.sampling_params, Random(new.seed), prompt, len(prompt), new.seed
            )
        for copy in scheduler_output.kv_cache_block_copies:
            if (
                copy.seq_id not in scheduler_output.resumed_req_ids
            ):  # else it is in the whole table below
                self.states[copy.seq_id].block_ids[-1] = copy.dst_block_id
        for seq_id, block_ids in scheduler_output.new_block_ids.items():
            self.states[seq_id].block_ids += block_ids

    def _move_beams(self, moves: list[BeamMove]) -> None:
        """Let beams become what the scheduler chose, in place of the tokens drawn here."""
        parents = {move.parent_id: self.states[move.parent_id] for move in moves}
        for move in moves:
            parent = parents[move.parent_id]
            token_ids = [*parent.token_ids[:-1], move.token_id]
            self.states[move.seq_id] = _child(parent, token_ids, parent.seed)

    def fork(self, seq_id: str, child_ids: list[str]) -> None:
        """Let siblings begin with all that a sequence has; the i-th draws with ``seed + i``."""
        parent = self.states[seq_id]
        for i, child_id in enumerate(child_ids, start=1):
            self.states[child_id] = _child(parent, list(parent.token_ids), parent.seed + i)

    def sampling_metadata(self, seq_ids: list[str], logits: torch.Tensor) -> SamplingMetadata:
        """The sampling parameters of these rows: the last step's, if they are the same."""
        states = [self.states[seq_id] for seq_id in seq_ids]
        metadata = self._sampling_metadata
        if metadata is None or metadata.states != states:
            metadata = SamplingMetadata(states, logits.shape[-1], logits.device)
            self._sampling_metadata = metadata
        return metadata

    def __getitem__(self, seq_id: str) -> CachedRequestState:
        return self.states[seq_id]
