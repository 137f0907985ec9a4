"""Parts of an engine core, each made from the config: KV caches, scheduler, adapters, drafter."""

from __future__ import annotations

from minivllm.config import VllmConfig
from minivllm.engine.kv_groups import log_windows, manager_class
from minivllm.engine.lora_registry import LoRARegistry
from minivllm.executor.abstract import Executor
from minivllm.kv.kv_cache_config import KVCacheConfig, get_kv_cache_config
from minivllm.kv.kv_cache_spec import table_groups
from minivllm.kv_transfer.base import KVConnectorRole
from minivllm.kv_transfer.factory import make_connector
from minivllm.scheduling import async_scheduler
from minivllm.scheduling.remote_kvs import connect
from minivllm.scheduling.scheduler import Scheduler
from minivllm.spec_decode.proposer import Drafter
from minivllm.trace import Trace


def initialize_kv_caches(config: VllmConfig, executor: Executor) -> KVCacheConfig:
    """Decide how many blocks there are, and let the workers allocate them.

    Raises:
        ValueError: if the memory cannot hold one sequence of full length.
    """
    kv_cache_config = get_kv_cache_config(
        config.cache_config,
        config.scheduler_config,
        kv_cache_specs=executor.get_kv_cache_specs(),
        available_memory=executor.determine_available_memory(),
        on_cpu=config.device_config.device.type == "cpu",
        num_machines=executor.num_machines / config.parallel_config.data_parallel_size,
        num_plans=config.max_concurrent_batches,
    )
    executor.initialize_from_config(kv_cache_config)
    log_windows(config, kv_cache_config)
    return kv_cache_config


def make_scheduler(config: VllmConfig, kv_cache_config: KVCacheConfig) -> Scheduler:
    """Make a scheduler with its KV cache manager, and the trace that hears of both."""
    cache = config.cache_config
    limits = config.scheduler_config
    num_blocks = kv_cache_config.num_blocks
    trace = None
    if config.observability_config.trace:
        trace = Trace(
            num_blocks,
            cache.block_size,
            limits.max_num_batched_tokens,
            max_num_encoder_input_tokens=limits.max_num_encoder_input_tokens,
            encoder_cache_size=limits.encoder_cache_size,
            groups=table_groups(group.kv_cache_spec for group in kv_cache_config.groups),
        )
    # by position: readers' managers may have other names for them
    kv_cache_manager = manager_class(config, kv_cache_config.groups)(
        num_blocks,
        cache.block_size,
        cache.enable_prefix_caching,
        kv_cache_config.num_host_blocks,
        trace,
    )
    scheduler = async_scheduler.make_scheduler(limits, kv_cache_manager, trace)
    connector = make_connector(config, KVConnectorRole.SCHEDULER)
    if connector is not None and config.kv_transfer_config is not None:
        recomputes = config.kv_transfer_config.kv_load_failure_policy == "recompute"
        connect(scheduler, connector, recomputes)
    return scheduler


def make_lora_registry(
    config: VllmConfig, executor: Executor, scheduler: Scheduler
) -> LoRARegistry | None:
    """Make the registry of adapters; None unless LoRA is enabled."""
    if config.lora_config is None:
        return None
    return LoRARegistry(config.lora_config, executor, scheduler)


def make_drafter(config: VllmConfig) -> Drafter | None:
    """Make the drafter, which guesses next tokens; None unless there is a speculative config."""
    if config.speculative_config is None:
        return None
    return Drafter(
        config.speculative_config,
        max_model_len=config.scheduler_config.max_model_len,
        vocab_size=config.model_config.vocab_size,
        placeholder_ids=config.model_config.placeholder_ids,
    )
