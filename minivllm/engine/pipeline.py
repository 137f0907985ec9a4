"""Pipeline: the engine core's step with several plans in flight, one for each stage.

(vLLM: ``EngineCore.step_with_batch_queue`` in vllm/v1/engine/core.py)
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from minivllm.engine.core_outputs import EngineCoreOutputs, collect
from minivllm.request import Sequence
from minivllm.scheduling.batch_queue import BatchQueue
from minivllm.scheduling.checkpoint import Checkpoint
from minivllm.scheduling.output import ModelRunnerOutput, SchedulerOutput


class Pipeline:
    """Steps of an engine core whose workers are stages."""

    def __init__(self, core: Any):
        self.core = core
        size = core.config.parallel_config.pipeline_parallel_size
        self.batch_queue = BatchQueue(core.scheduler, self._launch, size)

    def step(self) -> EngineCoreOutputs:
        """Plan a step if there is room for one; else wait for the oldest one and end it.

        If anything in it fails, all plans in flight are given up, and their requests are computed
        again by later steps.
        """
        core, checkpoint = self.core, None
        scheduler = core.scheduler
        try:
            if core.drafter is not None:
                scheduler.update_draft_token_ids(core.drafter.draft(core.to_draft_for, {}))
            core.to_draft_for = []
            oldest = self.batch_queue.advance()
            if oldest is None:
                return EngineCoreOutputs()
            plan, output = oldest
            # also those that were preempted since, whose tokens come all the same
            in_plan = (scheduler.sequences.get(seq_id) for seq_id in plan.num_scheduled_tokens)
            checkpoint = Checkpoint(seq for seq in in_plan if seq is not None)
            core.to_draft_for = scheduler.update_from_output(plan, output)
            return collect(core.to_draft_for, output)
        except BaseException:
            core.to_draft_for = []
            self.batch_queue.clear()
            scheduler.reset(checkpoint)
            raise

    def _launch(self, plan: SchedulerOutput) -> Future[ModelRunnerOutput]:
        """Give a plan to the workers, without waiting for its tokens."""
        if plan.has_structured_output_requests:
            self.core.fill_grammar_bitmask(plan)
        tell_tokens(plan, self.core.scheduler.sequences)
        return self.core.executor.execute_model(plan, non_block=True)


def tell_tokens(plan: SchedulerOutput, sequences: Mapping[str, Sequence]) -> None:
    """Tell earlier stages what the last one has sampled, as far as this plan computes it.

    Args:
        plan: gets its ``new_token_ids``.
        sequences: those in it, by id.
    """
    for seq_id, num_new in plan.num_scheduled_tokens.items():
        seq, start = sequences[seq_id], plan.num_computed_tokens[seq_id]
        if start + num_new > seq.num_prompt_tokens:
            plan.new_token_ids[seq_id] = seq.token_ids[start : start + num_new]
