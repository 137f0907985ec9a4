"""A workload through the very scheduler that serves, with made-up tokens in place of a model."""

from __future__ import annotations

from collections.abc import Iterable

from minivllm.kv.manager import KVCacheManager
from minivllm.logger import silenced
from minivllm.request import Request
from minivllm.sampling_params import SamplingParams
from minivllm.scheduling.scheduler import Scheduler
from minivllm.sim.replay import sample_for
from minivllm.trace import Trace


def dry_run(
    workload: Iterable[tuple[int, int]],
    *,
    num_blocks: int,
    block_size: int = 16,
    max_num_batched_tokens: int = 4096,
    max_num_seqs: int = 256,
    max_model_len: int = 4096,
) -> Trace:
    """Serve requests that all arrive at once, and return the trace of it.

    Memory and scheduling never look at what a token is, so the trace is the one that a model would
    have left behind, in milliseconds.

    Args:
        workload: ``(prompt tokens, output tokens)`` of each request.
        num_blocks: blocks in the pool, the null block included.
        block_size, max_num_batched_tokens, max_num_seqs, max_model_len: as for ``LLM``.

    Raises:
        ValueError: for a request that could never run.
    """
    trace = Trace(num_blocks, block_size, max_num_batched_tokens)
    scheduler = Scheduler(
        KVCacheManager(num_blocks, block_size, trace=trace),
        max_num_batched_tokens,
        max_num_seqs,
        max_model_len,
        trace=trace,
    )
    for index, (num_prompt, num_output) in enumerate(workload):
        params = SamplingParams(max_tokens=num_output, ignore_eos=True)
        scheduler.add_request(Request(str(index), [0] * num_prompt, params))
    with silenced("minivllm.scheduling.scheduler"):
        while scheduler.has_unfinished_requests():
            plan = scheduler.schedule()
            scheduler.update_from_output(plan, sample_for(scheduler, plan))
            scheduler.check_integrity()
    return trace
