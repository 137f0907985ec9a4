"""PipelineEngineCore: the engine core with several plans in flight, one for each stage.

(vLLM: ``EngineCore.step_with_batch_queue`` in vllm/v1/engine/core.py)
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future

from minivllm.config import VllmConfig
from minivllm.engine.core import EngineCore
from minivllm.engine.core_outputs import EngineCoreOutputs, collect
from minivllm.executor.abstract import Executor
from minivllm.request import Sequence
from minivllm.scheduling.batch_queue import BatchQueue
from minivllm.scheduling.checkpoint import Checkpoint
from minivllm.scheduling.output import ModelRunnerOutput, SchedulerOutput
from minivllm.structured_output.manager import StructuredOutputManager


class PipelineEngineCore(EngineCore):
    """An engine core whose workers are stages, with a plan in flight for each of them."""

    def __init__(
        self,
        config: VllmConfig,
        executor_class: type[Executor] | None = None,
        structured_output_manager: StructuredOutputManager | None = None,
    ):
        super().__init__(config, executor_class, structured_output_manager)
        size = config.parallel_config.pipeline_parallel_size
        self.batch_queue = BatchQueue(self.scheduler, size)

    def step(self) -> EngineCoreOutputs:
        """Plan a step if there is room for one; else wait for the oldest one and end it.

        If anything in it fails, all plans in flight are given up, and their requests are computed
        again by later steps.
        """
        checkpoint = None
        scheduler = self.scheduler
        try:
            if self.drafter is not None:
                scheduler.update_draft_token_ids(self.drafter.draft(self.to_draft_for, {}))
            self.to_draft_for = []
            oldest = self.batch_queue.advance(self._launch)
            if oldest is None:
                return EngineCoreOutputs()
            plan, output = oldest
            # also those that were preempted since, whose tokens come all the same
            in_plan = (scheduler.sequences.get(seq_id) for seq_id in plan.num_scheduled_tokens)
            checkpoint = Checkpoint(seq for seq in in_plan if seq is not None)
            self.to_draft_for = scheduler.update_from_output(plan, output)
            return collect(self.to_draft_for, output)
        except BaseException:
            self.to_draft_for = []
            self.batch_queue.clear()
            scheduler.reset(checkpoint)
            raise

    def has_unfinished_requests(self) -> bool:
        """True while ``step`` has something to do: also to end plans of requests that are over."""
        return super().has_unfinished_requests() or bool(self.batch_queue)

    def _launch(self, plan: SchedulerOutput) -> Future[ModelRunnerOutput]:
        """Give a plan to the workers, without waiting for its tokens."""
        if plan.has_structured_output_requests:
            self.fill_grammar_bitmask(plan)
        tell_tokens(plan, self.scheduler.sequences)
        return self.executor.execute_model(plan, non_block=True)


def core_class(config: VllmConfig) -> type[EngineCore]:
    """The engine core for a config: the plain one, unless its workers are stages."""
    stages = config.parallel_config.pipeline_parallel_size
    return EngineCore if stages == 1 else PipelineEngineCore


def tell_tokens(plan: SchedulerOutput, sequences: Mapping[str, Sequence]) -> None:
    """Tell earlier stages what the last one has sampled, as far as this plan computes it.

    Args:
        plan: gets its ``new_token_ids``.
        sequences: those in it, by id.
    """
    for seq_id, num_new in plan.num_scheduled_tokens.items():
        seq = sequences[seq_id]
        start = plan.num_computed_tokens[seq_id]
        if start + num_new > seq.num_prompt_tokens:
            plan.new_token_ids[seq_id] = seq.token_ids[start : start + num_new]
