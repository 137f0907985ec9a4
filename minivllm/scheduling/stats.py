"""make_stats: the SchedulerStats of a scheduler and its KV cache."""

from __future__ import annotations

from typing import Any

from minivllm.kv.manager import KVCacheManager
from minivllm.metrics.stats import SchedulerStats
from minivllm.scheduling.scheduler import Scheduler


def make_stats(scheduler: Scheduler) -> SchedulerStats:
    """Make the SchedulerStats: queues, adapters and KV cache as they are now."""
    waiting = [*scheduler.waiting, *scheduler.swapped]
    loras: dict[str, Any] = {}
    if scheduler.config.max_loras:
        loras = scheduler.lora_slots.make_stats(scheduler.running, waiting)
    return SchedulerStats(
        num_running_reqs=len(scheduler.requests) - len(waiting),
        num_waiting_reqs=len(waiting),
        num_swapped_reqs=len(scheduler.swapped),
        num_preemptions=scheduler.num_preemptions,
        spec_decoding_stats=scheduler.spec_decoding_stats,
        **_kv_cache_stats(scheduler.kv_manager),
        **loras,
    )


def _kv_cache_stats(manager: KVCacheManager) -> dict[str, Any]:
    """Fields of the SchedulerStats that tell about the KV cache."""
    stats: dict[str, Any] = {"kv_cache_usage": manager.usage}
    if manager.swap_space.tables:
        stats["cpu_cache_usage"] = manager.swap_space.usage
    if manager.prefix_cache is not None:
        total = manager.prefix_cache.stats
        recent = manager.prefix_cache.recent
        stats["prefix_cache_queries"] = total.queries
        stats["prefix_cache_hits"] = total.hits
        stats["recent_prefix_cache_queries"] = recent.queries
        stats["recent_prefix_cache_hits"] = recent.hits
    return stats
