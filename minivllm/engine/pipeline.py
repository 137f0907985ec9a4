"""PipelineEngineCore: the engine core with several plans in flight.

One for each stage of a pipeline, and one more with asynchronous scheduling: it is made while they
are computed.

(vLLM: ``EngineCore.step_with_batch_queue`` in vllm/v1/engine/core.py)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    """An engine core that makes a plan before the tokens of the last one are known."""

    def __init__(
        self,
        config: VllmConfig,
        executor_class: type[Executor] | None = None,
        structured_output_manager: StructuredOutputManager | None = None,
    ):
        super().__init__(config, executor_class, structured_output_manager)
        self.batch_queue = BatchQueue(self.scheduler, config.max_concurrent_batches)

    def step(self) -> EngineCoreOutputs:
        """Plan a step if there is room for one; else wait for the oldest one and end it.

        If anything in it fails, all plans in flight are given up, and their requests are computed
        again by later steps.
        """
        try:
            if self.drafter is not None:
                drafts = self.drafter.draft(self.to_draft_for, {})
                self.scheduler.update_draft_token_ids(drafts)
            self.to_draft_for = []
            oldest = self.batch_queue.advance(self._launch)
        except BaseException:
            self._give_up()
            raise
        if oldest is None:
            return EngineCoreOutputs()
        plan, output = oldest
        return self._update(plan, output)

    def _update(self, plan: SchedulerOutput, output: ModelRunnerOutput) -> EngineCoreOutputs:
        """Update the scheduler from the output of the oldest plan."""
        scheduler, checkpoint = self.scheduler, None
        try:
            # also those that were preempted since, whose tokens come all the same
            in_plan = (scheduler.sequences.get(seq_id) for seq_id in plan.num_scheduled_tokens)
            checkpoint = Checkpoint(seq for seq in in_plan if seq is not None)
            self.to_draft_for = scheduler.update_from_output(plan, output)
            return collect(self.to_draft_for, output)
        except BaseException:
            self._give_up(checkpoint)
            raise

    def _give_up(self, checkpoint: Checkpoint | None = None) -> None:
        """Give up all plans in flight, after a failure; their requests are computed again."""
        self.to_draft_for = []
        self.batch_queue.clear()
        self.scheduler.reset(checkpoint)

    def end_steps_in_flight(self) -> Iterator[EngineCoreOutputs]:
        """Wait for all plans in flight and end their steps; no further one is planned.

        Yields the outputs of each.
        """
        while self.batch_queue:
            try:
                plan, output = self.batch_queue.end_oldest()
            except BaseException:
                self._give_up()
                raise
            yield self._update(plan, output)

    def has_unfinished_requests(self) -> bool:
        """True while ``step`` has something to do: also to end plans of requests that are over."""
        return super().has_unfinished_requests() or bool(self.batch_queue)

    def _launch(self, plan: SchedulerOutput) -> Future[ModelRunnerOutput]:
        """Give a plan to the workers, without waiting for its tokens."""
        if plan.has_structured_output_requests:
            self.fill_grammar_bitmask(plan)
        if self.config.parallel_config.pipeline_parallel_size > 1:
            tell_tokens(plan, self.scheduler.sequences)
        return self.executor.execute_model(plan, non_block=True)


def core_class(config: VllmConfig) -> type[EngineCore]:
    """The engine core for a config: the plain one, unless several plans may be in flight."""
    return EngineCore if config.max_concurrent_batches == 1 else PipelineEngineCore


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
