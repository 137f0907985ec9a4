"""dry_run: the trace of a workload, from the real scheduler and block manager without a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from minivllm.kv.groups.options import check_retention_interval
from minivllm.kv.kv_cache_spec import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec
from minivllm.kv.manager import KVCacheManager
from minivllm.lab.sim.loop import run_steps
from minivllm.lab.sim.make import make_request, make_traced_scheduler
from minivllm.request import Request
from minivllm.scheduling.policies import SchedulingPolicy
from minivllm.trace import Trace
from minivllm.utils.validation import check, is_int


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
    max_loras: int = 0,
    max_num_encoder_input_tokens: int = 0,
    encoder_cache_size: int = 0,
    disable_chunked_mm_input: bool = False,
    kv_cache_manager_cls: type[KVCacheManager] = KVCacheManager,
    sliding_windows: Sequence[int | None] = (None,),
    prefix_cache_retention_interval: int | None = 0,
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
        max_loras: slots for adapters; 0 if no request has one.
        max_num_encoder_input_tokens: encoder budget of a step, in embeddings; 0 if no request has
            items, such as pictures.
        encoder_cache_size: embeddings that are kept.
        kv_cache_manager_cls: a ``KVCacheManager`` of your own.
        sliding_windows: of each KV cache group of the model, how many tokens a token sees; None:
            all. By default there is one group, which keeps all tokens.
        max_steps: when to give up: with a manager of your own a request may run for ever.
        block_size, max_num_batched_tokens, max_num_seqs, max_model_len, enable_prefix_caching,
            enable_chunked_prefill, long_prefill_token_threshold, policy, preemption_mode,
            disable_chunked_mm_input, prefix_cache_retention_interval: as for ``LLM``.

    Raises:
        ValueError: for a request that could never run, or a policy that never admits a request.
        RuntimeError: if a request still waits or runs after ``max_steps``.
    """
    specs = group_specs(sliding_windows, block_size)
    check_retention_interval(prefix_cache_retention_interval, specs)
    scheduler = make_traced_scheduler(
        num_blocks=num_blocks,
        block_size=block_size,
        max_num_batched_tokens=max_num_batched_tokens,
        enable_prefix_caching=enable_prefix_caching,
        num_host_blocks=num_host_blocks,
        kv_cache_manager_cls=kv_cache_manager_cls,
        groups=() if list(sliding_windows) == [None] else specs,
        prefix_cache_retention_interval=prefix_cache_retention_interval,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        enable_chunked_prefill=enable_chunked_prefill,
        long_prefill_token_threshold=long_prefill_token_threshold,
        policy=policy,
        preemption_mode=preemption_mode,
        max_loras=max_loras,
        max_num_encoder_input_tokens=max_num_encoder_input_tokens,
        encoder_cache_size=encoder_cache_size,
        disable_chunked_mm_input=disable_chunked_mm_input,
    )
    requests = [_request(index, entry) for index, entry in enumerate(workload)]
    for _ in run_steps(scheduler, requests, max_steps=max_steps):
        scheduler.check_integrity()
    assert scheduler.trace is not None
    return scheduler.trace


def group_specs(sliding_windows: Sequence[int | None], block_size: int) -> list[KVCacheSpec]:
    """Specs of KV cache groups with these windows. Heads do not count: there are no tensors.

    Raises:
        ValueError: for no group at all, or a window below 1.
    """
    heads = {"num_kv_heads": 1, "head_size": 1, "bytes_per_number": 1}
    check(len(sliding_windows) > 0, "sliding_windows", sliding_windows, "one for each group")
    specs: list[KVCacheSpec] = []
    for index, window in enumerate(sliding_windows):
        ok = window is None or is_int(window, 1)
        check(ok, f"sliding_windows[{index}]", window, "None, or an integer of at least 1")
        if window is None:
            specs.append(FullAttentionSpec(block_size, **heads))
        else:
            specs.append(SlidingWindowSpec(block_size, **heads, sliding_window=window))
    return specs


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
    return make_request(str(index), num_prompt, num_output)
