"""Preemption: when the blocks run out, a request gives way with all its sequences.

What it has computed is thrown away and computed again later, or it is kept in host memory. (V1 only
recomputes; swapping is V0's: vllm/core/scheduler.py of 0.6.6, ``_preempt``.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minivllm.kv.swap_space import KVCacheBlockSwap
from minivllm.logger import init_logger
from minivllm.records import Preempted, SwappedOut
from minivllm.request import Request, Sequence
from minivllm.scheduling.output import SchedulerOutput

if TYPE_CHECKING:
    from minivllm.scheduling.scheduler import Scheduler

logger = init_logger(__name__)


def preempt(scheduler: Scheduler, request: Request, scheduler_output: SchedulerOutput) -> None:
    """Free all blocks of a request; it waits at its place in the queue, to come back."""
    victims = [seq for seq in scheduler.running if seq.request is request]
    request.num_preemptions += 1
    scheduler.num_preemptions += 1
    swaps = _try_to_swap_out(scheduler, victims, scheduler_output)
    index = scheduler.enqueue(request, scheduler.waiting if swaps is None else scheduler.swapped)
    for seq in victims:
        scheduler.running.remove(seq)
        scheduler.unschedule(seq, scheduler_output)
        scheduler_output.preempted_req_ids.append(seq.seq_id)
        if swaps is None:
            scheduler.kv_manager.free(seq)
            seq.num_computed_tokens = 0
            if scheduler.trace is not None:
                scheduler.trace.record(Preempted, seq.seq_id, index if seq is victims[0] else None)
    logger.warning(
        "Request %s is preempted because there is not enough KV cache; this costs a %s. "
        "A larger cache or a smaller max_num_seqs avoids it. Preemptions so far: %d",
        request.request_id,
        "recomputation" if swaps is None else "copy to the host and back",
        scheduler.num_preemptions,
    )


def _try_to_swap_out(
    scheduler: Scheduler, victims: list[Sequence], scheduler_output: SchedulerOutput
) -> list[KVCacheBlockSwap] | None:
    """Keep what is computed on the host, if that is the mode and there is room."""
    mode = scheduler.preemption_mode or ("swap" if len(victims) > 1 else "recompute")
    if mode == "recompute" or victims[0].num_computed_tokens == 0:
        return None
    swaps = scheduler.kv_manager.swap_out(victims, scheduler_output.kv_cache_block_copies)
    if swaps is None:
        logger.warning(
            "Request %s cannot be swapped out: %d host blocks are free. It is recomputed; a "
            "larger swap_space avoids that.",
            victims[0].request.request_id,
            scheduler.kv_manager.swap_space.num_free_blocks,
        )
        return None
    scheduler_output.swaps_out += swaps
    if scheduler.trace is not None:
        for seq in victims:
            table = scheduler.kv_manager.swap_space.tables[seq.seq_id]
            scheduler.trace.record(SwappedOut, seq.seq_id, tuple(b.block_id for b in table))
    return swaps
