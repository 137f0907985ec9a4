"""EngineCore: scheduler and executor. Requests in, token ids out; it handles no text.

(vLLM: vllm/v1/engine/core.py, where it runs in a process of its own)
(notebooks 00, 05, A4)
"""

from __future__ import annotations

from collections.abc import Iterable

from minivllm.config import VllmConfig
from minivllm.engine.core_outputs import EngineCoreOutputs, collect
from minivllm.engine.core_parts import (
    initialize_kv_caches,
    make_drafter,
    make_lora_registry,
    make_scheduler,
)
from minivllm.engine.lora_registry import LoRARegistry
from minivllm.executor.abstract import Executor
from minivllm.metrics.stats import SchedulerStats
from minivllm.request import Request, RequestStatus, Sequence
from minivllm.scheduling.checkpoint import Checkpoint
from minivllm.scheduling.output import SchedulerOutput
from minivllm.scheduling.stats import make_stats
from minivllm.structured_output.manager import StructuredOutputManager
from minivllm.utils.gc_utils import freeze_libraries


class EngineCore:
    """The loop's body: schedule a step, execute it, update the scheduler from its output.

    Args:
        config: see ``EngineArgs.create_engine_config``.
        executor_class: where the workers run; None: as the config says.
        structured_output_manager: compiles grammars; None if no request has one.

    Raises:
        ValueError: if the memory cannot hold one sequence of full length.
    """

    def __init__(
        self,
        config: VllmConfig,
        executor_class: type[Executor] | None = None,
        structured_output_manager: StructuredOutputManager | None = None,
    ):
        freeze_libraries()  # a step would wait for a fifth of a second now and then
        self.config = config
        self.structured_output_manager = structured_output_manager
        # 1. Workers load the model. What memory they have left decides how many blocks there are.
        self.executor = (executor_class or Executor.get_class(config))(config)
        self.kv_cache_config = initialize_kv_caches(config, self.executor)
        # 2. The scheduler knows these blocks by their ids alone: no tensor comes to this side.
        self.scheduler = make_scheduler(config, self.kv_cache_config)
        self.trace = self.scheduler.trace
        # 3. Adapters, and guesses of next tokens, where the config asks for them.
        self._loras = make_lora_registry(config, self.executor, self.scheduler)
        self.drafter = make_drafter(config)
        self.to_draft_for: list[Sequence] = []  # those that the last step has given a token
        self._model_drafts: dict[str, list[int]] = {}  # and what a draft model says of them

    def step(self) -> EngineCoreOutputs:
        """Run one step. If anything in it fails, all requests are computed again by later steps."""
        checkpoint = None
        try:
            # 0. Propose drafts for the sequences that have a new token.
            if self.drafter is not None:
                drafts = self.drafter.draft(self.to_draft_for, self._model_drafts)
                self.scheduler.update_draft_token_ids(drafts)
            # 1. Schedule: how many tokens of each sequence, and the slots of their K and V.
            scheduler_output = self.scheduler.schedule()
            if scheduler_output.has_structured_output_requests:
                self.fill_grammar_bitmask(scheduler_output)
            # 2. Run the model, and sample.
            output = self.executor.execute_model(scheduler_output)
            # from here on requests change, and a checkpoint can take that back
            checkpoint = Checkpoint(self.scheduler.running)
            # 3. Append, fork, finish, free.
            updated = self.scheduler.update_from_output(scheduler_output, output)
            self.to_draft_for = updated
            self._model_drafts = output.draft_token_ids
            return collect(updated, output)
        except BaseException:
            # also Ctrl-C: back to the checkpoint, or no request could be trusted any more
            self.to_draft_for = []
            self.scheduler.reset(checkpoint)
            raise

    def end_steps_in_flight(self) -> Iterable[EngineCoreOutputs]:
        """End the steps whose plans are in flight. Between two calls of ``step`` there is none."""
        return ()

    def fill_grammar_bitmask(self, plan: SchedulerOutput) -> None:
        """Set the bitmask of the tokens that grammars allow next."""
        if (manager := self.structured_output_manager) is not None:
            plan.grammar_output = manager.grammar_output(plan, self.scheduler.sequences)

    def check_request(self, request: Request) -> None:
        """Raise ``ValueError`` unless this request can be added and could run on its own."""
        self.scheduler.check_request(request)
        self.executor.check_request(request)
        if request.lora_request is not None:
            request.lora = self.loras.load_for(request)
        if self.scheduler.remote_kvs is not None:
            self.scheduler.remote_kvs.connector.check_request(request)

    def add_request(self, request: Request) -> None:
        """Queue a request.

        Raises:
            ValueError: if it could never run; then nothing has changed.
        """
        if self.structured_output_manager is not None:
            self.structured_output_manager.grammar_init(request)
        # its adapter is read now: a file that is broken is this caller's error, not a step's
        self.check_request(request)
        self.scheduler.add_request(request)

    @property
    def loras(self) -> LoRARegistry:
        """Adapters in host memory. Raises ``ValueError`` unless LoRA is enabled."""
        if self._loras is None:
            raise ValueError("there are no adapters: LoRA is not enabled (enable_lora=True).")
        return self._loras

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        """Abort requests and free their blocks. Unknown ids are ignored."""
        self.scheduler.finish_requests(request_ids, RequestStatus.FINISHED_ABORTED)

    def shutdown(self) -> None:
        """End the workers. A second call does nothing."""
        self.executor.shutdown()

    def make_stats(self) -> SchedulerStats:
        """Make the SchedulerStats: queues and KV cache as they are now."""
        return make_stats(self.scheduler)

    def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache. Refuses (False) while any block is in use."""
        return self.scheduler.kv_manager.reset_prefix_cache()

    def has_unfinished_requests(self) -> bool:
        """True while ``step`` has something to do."""
        return self.scheduler.has_unfinished_requests()

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` unless queues, requests and blocks are consistent."""
        self.scheduler.check_integrity()
