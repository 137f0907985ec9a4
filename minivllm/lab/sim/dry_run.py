"""A workload through the very scheduler that serves, with made-up tokens in place of a model."""

from __future__ import annotations

from collections.abc import Iterable

from minivllm.kv.manager import KVCacheManager
from minivllm.lab.sim.progress import check_progress
from minivllm.lab.sim.replay import sample_for
from minivllm.logger import silenced
from minivllm.request import Request
from minivllm.sampling_params import SamplingParams
from minivllm.scheduling.policies import SchedulingPolicy, make_policy
from minivllm.scheduling.scheduler import Scheduler
from minivllm.trace import Trace
from minivllm.validation import check, is_int


def dry_run(
    workload: Iterable[tuple[int, int] | Request],
    *,
    num_blocks: int,
    block_size: int = 16,
    max_num_batched_tokens: int = 4096,
    max_num_seqs: int = 256,
    max_model_len: int = 4096,
    enable_prefix_caching: bool = False,
    enable_chunked_prefill: bool = True,
    long_prefill_token_threshold: int = 0,
    policy: str | SchedulingPolicy = "fcfs",
    preemption_mode: str | None = None,
    num_host_blocks: int = 0,
    kv_cache_manager_cls: type[KVCacheManager] = KVCacheManager,
    max_steps: int = 100_000,
) -> Trace:
    """Serve requests without a model, and return the trace of it.

    Memory and scheduling never look at what a token is, so the trace is the one that a model would
    have left behind, in milliseconds.

    Args:
        workload: ``(prompt tokens, output tokens)`` of requests that are there from the start, or
            requests of your own, each of which joins the queue in the step that is its
            ``arrival_time``.
        num_blocks: blocks in the pool, the null block included.
        num_host_blocks: the same in host memory, for swapping.
        kv_cache_manager_cls: a ``KVCacheManager`` of your own.
        max_steps: when to give up: with a manager of your own somebody may run for ever.
        block_size, max_num_batched_tokens, max_num_seqs, max_model_len, enable_prefix_caching,
            enable_chunked_prefill, long_prefill_token_threshold, policy, preemption_mode: as for
            ``LLM``.

    Raises:
        ValueError: for a request that could never run, or a policy that admits nobody.
        RuntimeError: if somebody still waits or runs after ``max_steps``.
    """
    trace = Trace(num_blocks, block_size, max_num_batched_tokens)
    manager = kv_cache_manager_cls(
        num_blocks, block_size, enable_prefix_caching, num_host_blocks, trace
    )
    scheduler = Scheduler(
        manager,
        max_num_batched_tokens,
        max_num_seqs,
        max_model_len,
        enable_chunked_prefill=enable_chunked_prefill,
        long_prefill_token_threshold=long_prefill_token_threshold,
        policy=make_policy(policy),
        preemption_mode=preemption_mode,
        trace=trace,
    )
    requests = [_request(index, entry) for index, entry in enumerate(workload)]
    arrivals = sorted(requests, key=lambda request: request.arrival_time)
    with silenced("minivllm.scheduling.preemption"):
        while arrivals or scheduler.has_unfinished_requests():
            if trace.num_steps == max_steps:
                raise RuntimeError(
                    f"after {max_steps} steps some are not done: {', '.join(scheduler.requests)}."
                )
            while arrivals and arrivals[0].arrival_time <= trace.num_steps:
                scheduler.add_request(arrivals.pop(0))
            scheduler_output = scheduler.schedule()
            check_progress(scheduler, scheduler_output, more_to_come=bool(arrivals))
            scheduler.update_from_output(scheduler_output, sample_for(scheduler, scheduler_output))
            scheduler.check_integrity()
    return trace


def _request(index: int, entry: tuple[int, int] | Request) -> Request:
    if isinstance(entry, Request):
        return entry
    ok = isinstance(entry, tuple) and len(entry) == 2 and all(is_int(n, 1) for n in entry)
    check(
        ok,
        f"workload[{index}]",
        entry,
        "(prompt tokens, output tokens), each at least 1, or a Request",
    )
    num_prompt, num_output = entry
    params = SamplingParams(max_tokens=num_output, ignore_eos=True)
    return Request(str(index), [0] * num_prompt, params)
