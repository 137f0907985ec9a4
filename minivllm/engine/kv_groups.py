"""KV cache groups of an engine: which ones its model has, and the manager that suits them.

(vLLM: ``get_kv_cache_groups`` and ``get_kv_cache_coordinator`` choose, from the config and the
layers)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from minivllm.config import VllmConfig
from minivllm.kv.encoder_only import EncoderOnlyKVCacheManager
from minivllm.kv.groups.manager import HybridKVCacheManager
from minivllm.kv.groups.options import check_retention_interval, resolve_hash_block_size
from minivllm.kv.kv_cache_config import KVCacheConfig, max_blocks_by_group
from minivllm.kv.kv_cache_spec import DRAFT, KVCacheGroupSpec, get_kv_cache_groups
from minivllm.kv.manager import KVCacheManager
from minivllm.logger import init_logger
from minivllm.utils.validation import check
from minivllm.worker.kv_cache import kv_cache_specs

logger = init_logger(__name__)


def is_hybrid(groups: Sequence[KVCacheGroupSpec]) -> bool:
    """True unless there is one group, of full attention, or none: then all tables are alike."""
    return len(groups) > 1 or any(not group.is_full for group in groups)


def check_groups(config: VllmConfig) -> None:
    """Check that what the config asks for goes with the model's groups, before any is made.

    Raises:
        ValueError: naming the argument, its value and what is allowed.
    """
    cache = config.cache_config
    keeps_all = config.scheduler_config.disable_hybrid_kv_cache_manager
    specs = kv_cache_specs(config.model_config, cache, keeps_all=keeps_all)
    if config.draft_model_config is not None:
        draft = config.draft_model_config
        specs |= kv_cache_specs(draft, cache, prefix=DRAFT, keeps_all=True)
    groups = get_kv_cache_groups([specs])
    of_groups = [group.kv_cache_spec for group in groups]
    check_retention_interval(cache.prefix_cache_retention_interval, of_groups)
    if groups and cache.enable_prefix_caching:
        resolve_hash_block_size(cache.prefix_match_unit, of_groups)
    windows = [w for w in config.model_config.sliding_windows if w is not None]
    if keeps_all and windows:
        logger.warning(
            "disable_hybrid_kv_cache_manager=True: %d of %d layers have a sliding window of up to "
            "%d tokens, and keep all others, too, which no query reads. A long request takes "
            "memory as if these layers had full attention.",
            len(windows),
            config.model_config.num_layers,
            max(windows),
        )
    if not is_hybrid(groups):
        return
    allowed = "None where layers have a sliding window, unless disable_hybrid_kv_cache_manager=True"
    connector = config.kv_transfer_config
    check(connector is None, "kv_transfer_config", connector, allowed)
    own = cache.kv_cache_manager_cls
    ok = own is None or issubclass(own, HybridKVCacheManager)
    check(ok, "kv_cache_manager_cls", own, f"a HybridKVCacheManager, or {allowed}")


def manager_class(config: VllmConfig, groups: Sequence[KVCacheGroupSpec]) -> Any:
    """The class of the KV cache manager, or what stands for it and takes the same arguments."""
    own = config.cache_config.kv_cache_manager_cls
    if not groups:
        return own or EncoderOnlyKVCacheManager
    wants_groups = isinstance(own, type) and issubclass(own, HybridKVCacheManager)
    if not (is_hybrid(groups) or wants_groups):
        return own or KVCacheManager
    cache = config.cache_config
    specs = [group.kv_cache_spec for group in groups]
    hash_block_size = None  # without a prefix cache nothing is hashed
    if cache.enable_prefix_caching:
        hash_block_size = resolve_hash_block_size(cache.prefix_match_unit, specs)
    return partial(
        own or HybridKVCacheManager,
        specs=specs,
        max_model_len=config.scheduler_config.max_model_len,
        max_in_flight_tokens=config.max_in_flight_tokens,
        retention_interval=cache.prefix_cache_retention_interval,
        hash_block_size=hash_block_size,
    )


def log_windows(config: VllmConfig, kv_cache_config: KVCacheConfig) -> None:
    """Log how many tokens there is room for, if windows make that another number than slots."""
    groups = kv_cache_config.groups
    num_windows = sum(not group.is_full for group in groups)
    if num_windows == 0:
        return
    max_model_len = config.scheduler_config.max_model_len
    in_flight = config.max_in_flight_tokens
    concurrency = kv_cache_config.max_concurrency(max_model_len, in_flight)
    logger.info(
        "%s KV cache groups have a sliding window: there is room for %d tokens in requests "
        "of %d, each of which holds up to %d blocks.",
        f"{num_windows} of {len(groups)}",
        concurrency * max_model_len,
        max_model_len,
        sum(max_blocks_by_group(groups, max_model_len, in_flight)),
    )
