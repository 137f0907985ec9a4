"""InputBatch: what the runner remembers of each sequence between steps.

The scheduler sends only what is new; this is the other side's copy. Random generators live here.
(vLLM: vllm/v1/worker/gpu_input_batch.py)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from minivllm.sampling_params import SamplingParams
from minivllm.scheduling.output import BeamMove, SchedulerOutput


@dataclass
class CachedRequestState:
    """One sequence as the runner knows it."""

    token_ids: list[int]
    sampling_params: SamplingParams
    seed: int
    block_ids: list[int] = field(default_factory=list)
    generator: Random = field(init=False)

    def __post_init__(self):
        self.generator = Random(self.seed)


class InputBatch:
    """The sequences that have been scheduled and have not finished, by id."""

    def __init__(self):
        self.states: dict[str, CachedRequestState] = {}

    def update(self, plan: SchedulerOutput) -> None:
        """Follow a plan: forget, begin, and let block tables grow."""
        for seq_id in plan.finished_req_ids:
            self.states.pop(seq_id, None)
        self._move_beams(plan.beam_moves)
        for seq_id in plan.preempted_req_ids:  # tokens and generator stay: it will come back
            self.states[seq_id].block_ids = []
        for new in plan.scheduled_new_reqs:
            self.states[new.seq_id] = CachedRequestState(
                list(new.token_ids), new.sampling_params, new.seed
            )
        for copy in plan.block_copies:
            if copy.seq_id not in plan.resumed_req_ids:  # else it is in the whole table below
                self.states[copy.seq_id].block_ids[-1] = copy.dst
        for seq_id, block_ids in plan.new_block_ids.items():
            self.states[seq_id].block_ids += block_ids

    def _move_beams(self, moves: list[BeamMove]) -> None:
        """Let beams become what the scheduler chose, in place of the tokens drawn here."""
        parents = {move.parent_id: self.states[move.parent_id] for move in moves}
        for move in moves:
            parent = parents[move.parent_id]
            self.states[move.seq_id] = CachedRequestState(
                [*parent.token_ids[:-1], move.token_id],
                parent.sampling_params,
                parent.seed,
                list(parent.block_ids),
            )

    def fork(self, seq_id: str, child_ids: list[str]) -> None:
        """Let siblings begin with all that a sequence has; the i-th draws with ``seed + i``."""
        parent = self.states[seq_id]
        for i, child_id in enumerate(child_ids, start=1):
            self.states[child_id] = CachedRequestState(
                list(parent.token_ids),
                parent.sampling_params,
                parent.seed + i,
                list(parent.block_ids),
            )

    def __getitem__(self, seq_id: str) -> CachedRequestState:
        return self.states[seq_id]
