"""make_stats: the SchedulerStats of a scheduler and its KV cache."""

from __future__ import annotations

from typing import Any

from minivllm.metrics.stats import SchedulerStats
from minivllm.scheduling.scheduler import Scheduler


def make_stats(scheduler: Scheduler) -> SchedulerStats:
    """Make the SchedulerStats: queues, adapters and KV cache as they are now."""
    manager = scheduler.kv_manager
    waiting = [*scheduler.waiting, *scheduler.swapped]
    features: dict[str, Any] = {}
    if manager.swap_space.tables:
        features["cpu_cache_usage"] = manager.swap_space.usage
    if manager.prefix_cache is not None:
        total = manager.prefix_cache.stats
        recent = manager.prefix_cache.recent
        features["prefix_cache_queries"] = total.queries
        features["prefix_cache_hits"] = total.hits
        features["recent_prefix_cache_queries"] = recent.queries
        features["recent_prefix_cache_hits"] = recent.hits
    if scheduler.config.max_loras:
        features |= scheduler.lora_slots.make_stats(scheduler.running, waiting)
    remote = scheduler.remote_kvs
    if remote is not None:
        features |= remote.make_stats(scheduler.waiting)
        waiting += remote.waiting.values()
    return SchedulerStats(
        num_running_reqs=len(scheduler.requests) - len(waiting),
        num_waiting_reqs=len(waiting),
        num_swapped_reqs=len(scheduler.swapped),
        num_preemptions=scheduler.num_preemptions,
        kv_cache_usage=manager.usage,
        spec_decoding_stats=scheduler.spec_decoding_stats,
        **features,
    )
