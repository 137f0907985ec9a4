"""Could this request run at all? Asked once, before it waits; one that never could is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minivllm.request import Request

if TYPE_CHECKING:
    from minivllm.scheduling.scheduler import Scheduler


def check_limits(request: Request, scheduler: Scheduler) -> None:
    """Raise ``ValueError`` if the scheduler could not run this request even on its own."""
    n, limit = len(request.prompt_token_ids), scheduler.max_model_len
    if n == 0:
        raise ValueError("the prompt is empty; it must have at least one token.")
    if n >= limit:
        raise ValueError(
            f"the prompt has {n} tokens, but max_model_len is {limit} and at least one token "
            f"must be left for the output; shorten it to {limit - 1} or raise max_model_len."
        )
    if request.priority != 0 and not scheduler.policy.uses_priority:
        raise ValueError(
            f"priority is {request.priority}, but scheduling_policy is not 'priority'; "
            "choose that policy or leave the priority at 0."
        )
    params = request.sampling_params
    if params.n > scheduler.max_num_seqs:
        raise ValueError(
            f"n is {params.n}, but max_num_seqs is {scheduler.max_num_seqs}, and all samples of a "
            "request run at once; lower n or raise max_num_seqs."
        )
    longest = limit if params.max_tokens is None else min(limit, n + params.max_tokens)
    # Computed again after a preemption, siblings share what the first of them computes in one
    # step. (The last token of a sequence has no K and V.)
    shared = min(n, scheduler.max_num_batched_tokens, scheduler.long_prefill_token_threshold or n)
    manager = scheduler.kv_manager
    needed = manager.num_blocks_at_most(shared, longest - 1, params.n)
    usable = manager.block_pool.num_usable_blocks
    if needed > usable:
        raise ValueError(
            f"the request can grow to {params.n} x {longest} tokens, which takes {needed} "
            f"blocks of {manager.block_size}, but the whole KV cache holds {usable}; "
            "lower max_tokens or n, or enlarge the cache."
        )
