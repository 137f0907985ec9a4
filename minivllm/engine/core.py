"""EngineCore: scheduler and executor. Requests in, token ids out; it handles no text.

(vLLM: vllm/v1/engine/core.py, where it runs in a process of its own)
"""

from __future__ import annotations

from collections.abc import Iterable

from minivllm.config import VllmConfig
from minivllm.engine.core_outputs import EngineCoreOutputs, collect
from minivllm.engine.lora_registry import LoRARegistry
from minivllm.executor.abstract import Executor
from minivllm.kv.encoder_only import EncoderOnlyKVCacheManager
from minivllm.kv.kv_cache_config import KVCacheConfig, get_kv_cache_config
from minivllm.kv.manager import KVCacheManager
from minivllm.lora.request import LoRARequest
from minivllm.metrics.stats import SchedulerStats
from minivllm.request import Request, RequestStatus, Sequence
from minivllm.scheduling.async_scheduler import AsyncScheduler
from minivllm.scheduling.checkpoint import Checkpoint
from minivllm.scheduling.output import SchedulerOutput
from minivllm.scheduling.scheduler import Scheduler
from minivllm.scheduling.stats import make_stats
from minivllm.spec_decode.proposer import Drafter
from minivllm.structured_output.manager import StructuredOutputManager
from minivllm.trace import Trace
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
        self.executor = (executor_class or Executor.get_class(config))(config)
        cache, limits = config.cache_config, config.scheduler_config
        self.kv_cache_config = self._initialize_kv_caches()
        num_blocks = self.kv_cache_config.num_blocks
        self.trace: Trace | None = None
        if config.observability_config.trace:
            self.trace = Trace(num_blocks, cache.block_size, limits.max_num_batched_tokens)
        is_encoder = config.model_config.is_encoder_only
        usual = EncoderOnlyKVCacheManager if is_encoder else KVCacheManager
        kv_cache_manager_cls = cache.kv_cache_manager_cls or usual
        kv_cache_manager = kv_cache_manager_cls(
            num_blocks,
            cache.block_size,
            cache.enable_prefix_caching,
            self.kv_cache_config.num_host_blocks,
            self.trace,
        )
        scheduler_cls = AsyncScheduler if limits.async_scheduling else Scheduler
        self.scheduler = scheduler_cls(limits, kv_cache_manager, self.trace)
        self.loras: LoRARegistry | None = None
        if config.lora_config is not None:
            self.loras = LoRARegistry(config.lora_config, self.executor, self.scheduler)
        self.drafter: Drafter | None = None
        if config.speculative_config is not None:
            self.drafter = Drafter(
                config.speculative_config, limits.max_model_len, config.model_config.vocab_size
            )
        self.to_draft_for: list[Sequence] = []  # those that the last step has given a token
        self._model_drafts: dict[str, list[int]] = {}  # and what a draft model says of them

    def _initialize_kv_caches(self) -> KVCacheConfig:
        """Decide how many blocks there are, and let the workers allocate them."""
        kv_cache_config = get_kv_cache_config(
            self.config.cache_config,
            self.config.scheduler_config,
            self.executor.get_kv_cache_specs(),
            self.executor.determine_available_memory(),
            self.config.device_config.device.type == "cpu",
            self.executor.num_machines / self.config.parallel_config.data_parallel_size,
        )
        self.executor.initialize_from_config(kv_cache_config)
        return kv_cache_config

    def check_request(self, request: Request) -> None:
        """Raise ``ValueError`` unless this request can be added and could run on its own."""
        self.scheduler.check_request(request)
        self.executor.check_request(request)
        if request.lora_request is not None:
            request.lora = self._loras.load_for(request)

    def add_request(self, request: Request) -> None:
        """Queue a request.

        Raises:
            ValueError: if it could never run; then nothing has changed.
        """
        if self.structured_output_manager is not None:
            self.structured_output_manager.grammar_init(request)
        self.check_request(request)  # its adapter is read now, so that no step can fail for it
        self.scheduler.add_request(request)

    def add_lora(self, lora_request: LoRARequest) -> bool:
        """Read an adapter before a request needs it. False if that was done already.

        Raises:
            ValueError: if it cannot be read or does not fit; nothing has changed then.
        """
        return self._loras.add(lora_request)

    def remove_lora(self, lora_int_id: int) -> bool:
        """Remove an adapter; its requests go on with it. False if there is none."""
        return self._loras.remove(lora_int_id)

    def pin_lora(self, lora_int_id: int) -> bool:
        """Keep an adapter in host memory and in its slot. Raises ``ValueError`` if it cannot be."""
        return self._loras.pin(lora_int_id)

    def list_loras(self) -> set[int]:
        """Ids of all adapters in host memory."""
        return self._loras.list_loras()

    @property
    def _loras(self) -> LoRARegistry:
        if self.loras is None:
            raise ValueError("there are no adapters: LoRA is not enabled (enable_lora=True).")
        return self.loras

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        """Abort requests and free their blocks. Unknown ids are ignored."""
        self.scheduler.finish_requests(request_ids, RequestStatus.FINISHED_ABORTED)

    def stop_sequences(self, sequences: Iterable[tuple[str, int]]) -> None:
        """Finish sequences whose text holds a stop string, as a part of the last step.

        Args:
            sequences: request id and index of each. Those that are over are ignored.
        """
        self.scheduler.stop_sequences(sequences)

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
            checkpoint = Checkpoint(self.scheduler.running)
            # 3. Append, fork, finish, free.
            updated = self.scheduler.update_from_output(scheduler_output, output)
            self.to_draft_for, self._model_drafts = updated, output.draft_token_ids
            return collect(updated, output)
        except BaseException:
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
