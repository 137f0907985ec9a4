"""Statistics of a step: SchedulerStats, IterationStats and FinishedRequestStats.

(vLLM: vllm/v1/core/sched/scheduler.py, ``make_stats``; vllm/v1/metrics/stats.py)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minivllm.engine.core_outputs import EngineCoreOutput
from minivllm.metrics.stats import FinishedRequestStats, IterationStats, SchedulerStats
from minivllm.scheduling.scheduler import Scheduler

if TYPE_CHECKING:
    from minivllm.engine.request_state import RequestState


def scheduler_stats(scheduler: Scheduler) -> SchedulerStats:
    """Make the SchedulerStats: queues and KV cache after a step."""
    manager, cache = scheduler.kv_manager, scheduler.kv_manager.prefix_cache
    swapped = len(scheduler.swapped)
    return SchedulerStats(
        num_running_reqs=len(scheduler.requests) - len(scheduler.waiting) - swapped,
        num_waiting_reqs=len(scheduler.waiting) + swapped,
        num_swapped_reqs=swapped,
        kv_cache_usage=manager.usage,
        cpu_cache_usage=manager.swap_space.usage,
        prefix_cache_queries=0 if cache is None else cache.stats.queries,
        prefix_cache_hits=0 if cache is None else cache.stats.hits,
        num_preemptions=scheduler.num_preemptions,
        recent_hit_rate=0.0 if cache is None else cache.recent.hit_rate,
        spec_decoding_stats=scheduler.spec_decoding_stats,
    )


def count_tokens(
    iteration: IterationStats, state: RequestState, output: EngineCoreOutput, now: float
) -> None:
    """Count the tokens of one sequence in a step, before its state is updated."""
    num_new = 1 if state.beams is not None else len(output.new_token_ids)
    iteration.num_generation_tokens += num_new
    if not state.has_begun:
        iteration.num_prompt_tokens += len(state.prompt_token_ids)
        iteration.num_cached_tokens += output.num_cached_tokens or 0
        iteration.time_to_first_tokens.append(now - state.metrics.arrival_time)
    elif output.index in state.last_token_times:
        gap = (now - state.last_token_times[output.index]) / max(1, num_new)
        iteration.inter_token_latencies += [gap] * num_new
    state.last_token_times[output.index] = now


def finished_stats(state: RequestState, now: float) -> FinishedRequestStats:
    """Make the FinishedRequestStats of a request that has just finished."""
    times, params = state.metrics, state.params
    first, last = times.first_token_time or now, times.last_token_time or now
    begun = times.first_scheduled_time or first
    if state.beams is not None:
        lengths = [len(beam.output.new_token_ids) for beam in state.beams]
        reason = state.beams[0].finish_reason
    else:
        lengths = [len(sample.token_ids) for sample in state.samples]
        reason = state.samples[0].finish_reason
    return FinishedRequestStats(
        finish_reason=reason or "error",
        e2e_latency=now - times.arrival_time,
        queued_time=begun - times.arrival_time,
        prefill_time=first - begun,
        decode_time=last - first,
        num_prompt_tokens=len(state.prompt_token_ids),
        num_cached_tokens=state.num_cached_tokens or 0,
        num_generation_tokens=sum(lengths),
        max_num_generation_tokens=max(lengths),
        num_preemptions=state.num_preemptions,
        params_n=state.n,
        params_max_tokens=params.max_tokens and min(params.max_tokens, 2**53),  # a float there
    )
