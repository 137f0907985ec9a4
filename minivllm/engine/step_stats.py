"""StepStats: what every step has given becomes what is counted of it.

(vLLM: vllm/v1/core/sched/scheduler.py, ``make_stats``; vllm/v1/metrics/stats.py)
"""

from __future__ import annotations

import time
from weakref import WeakKeyDictionary

from minivllm.metrics.families import EngineMetrics
from minivllm.metrics.loggers import LoggingStatLogger
from minivllm.metrics.stats import FinishedRequestStats, IterationStats, SchedulerStats
from minivllm.request import Request, Sequence
from minivllm.scheduling.scheduler import Scheduler


def scheduler_stats(scheduler: Scheduler) -> SchedulerStats:
    """How the scheduler stands now."""
    manager, cache = scheduler.kv_manager, scheduler.kv_manager.prefix_cache
    swapped = len(scheduler.swapped)
    return SchedulerStats(
        num_running_reqs=len(scheduler.requests) - len(scheduler.waiting) - swapped,
        num_waiting_reqs=len(scheduler.waiting) + swapped,
        num_swapped_reqs=swapped,
        kv_cache_usage=manager.usage,
        cpu_cache_usage=manager.swap_space.usage,
        prefix_cache_queries=0 if cache is None else cache.num_queried_tokens,
        prefix_cache_hits=0 if cache is None else cache.num_hit_tokens,
        num_preemptions=scheduler.num_preemptions,
    )


class StepStats:
    """Counts every step; a request that is aborted is not counted as one that has ended.

    Args:
        scheduler: who runs, who waits, and how full the cache is.
        metrics: where it is counted.
        logger: says so now and then.
    """

    def __init__(self, scheduler: Scheduler, metrics: EngineMetrics, logger: LoggingStatLogger):
        self.scheduler = scheduler
        self.metrics = metrics
        self.logger = logger
        # of requests that are alive: when each sequence, by index, got its last token
        self._last_token: WeakKeyDictionary[Request, dict[int, float]] = WeakKeyDictionary()

    def record(self, updated: list[Sequence]) -> None:
        """Count a step: the sequences that got a token."""
        now, iteration = time.monotonic(), IterationStats()
        for seq in updated:
            times = self._last_token.setdefault(seq.request, {})
            if seq.index in times:
                iteration.inter_token_latencies.append(now - times[seq.index])
            elif seq.index == 0:
                iteration.num_prompt_tokens += seq.num_prompt_tokens
                iteration.time_to_first_tokens.append(now - seq.request.arrival_time)
            times[seq.index] = now
        iteration.num_generation_tokens = len(updated)
        for request in dict.fromkeys(seq.request for seq in updated):
            if not request.unfinished_seqs:
                iteration.finished_requests.append(_finished(request, now))
        self.metrics.record(scheduler_stats(self.scheduler), iteration)
        self.logger.record()

    def refresh(self) -> None:
        """See how the scheduler stands, where no step has just said so."""
        self.metrics.scheduler = scheduler_stats(self.scheduler)


def _finished(request: Request, now: float) -> FinishedRequestStats:
    times = request.metrics
    first = times.first_token_time or now
    lengths = [seq.num_output_tokens for seq in request.seqs]
    return FinishedRequestStats(
        finish_reason=request.seqs[0].status.finish_reason,
        e2e_latency=now - request.arrival_time,
        queued_time=times.time_in_queue,
        prefill_time=first - times.first_scheduled_time,
        decode_time=now - first,
        num_prompt_tokens=len(request.prompt_token_ids),
        num_generation_tokens=sum(lengths),
        max_num_generation_tokens=max(lengths),
        num_preemptions=request.num_preemptions,
        params_n=request.n,
        params_max_tokens=request.sampling_params.max_tokens,
    )
