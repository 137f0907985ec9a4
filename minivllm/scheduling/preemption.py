"""Preemption: when the blocks run out, all sequences of a request lose theirs (notebooks 06b, 08b).

What it has computed is thrown away and computed again later, or it is kept in host memory. (V1 only
recomputes; swapping is V0's: vllm/core/scheduler.py of 0.6.6, ``_preempt``.)
"""

from __future__ import annotations

from minivllm.kv.groups.swapping import make_swapper
from minivllm.kv.manager import KVCacheManager
from minivllm.logger import init_logger
from minivllm.request import Sequence
from minivllm.scheduling.output import SchedulerOutput
from minivllm.scheduling.request_queue import RequestQueue
from minivllm.trace import Trace
from minivllm.trace.records import Preempted, SwappedOut

logger = init_logger(__name__)

_LOG_EVERY = 50  # the first preemption is logged, and then every fiftieth


class Preemptor:
    """Takes the blocks of a request's sequences: by recomputation or by swapping.

    Args:
        kv_manager: whose blocks they are.
        mode: "recompute" or "swap"; None recomputes a request with one sequence and swaps one with
            several.
        trace: listens, if given.
    """

    def __init__(self, kv_manager: KVCacheManager, mode: str | None, trace: Trace | None):
        self.kv_manager = kv_manager
        self.swapper = make_swapper(kv_manager)
        self.mode = mode
        self.trace = trace

    def swap_out(self, victims: list[Sequence], output: SchedulerOutput) -> bool:
        """Swap a request's sequences out to the host, if that is the mode.

        Returns:
            False, and nothing has changed, if it is not, there is too little room (on the host, or
            later on the device), or tokens are on their way: which these are is not known yet.
        """
        mode = self.mode or ("swap" if len(victims) > 1 else "recompute")
        in_flight = any(seq.num_in_flight_tokens for seq in victims)
        if mode == "recompute" or in_flight or victims[0].num_computed_tokens == 0:
            return False
        if not self.swapper.could_return(victims):
            return False
        space = self.kv_manager.swap_space
        swaps = self.swapper.swap_out(victims, output.kv_cache_block_copies)
        if swaps is None:
            logger.warning(
                "Request %s cannot be swapped out: %d host blocks are free. It is recomputed; a "
                "larger swap_space avoids that.",
                victims[0].request.request_id,
                space.num_free_blocks,
            )
            return False
        output.swaps_out += swaps
        return True

    def swap_in(self, queue: RequestQueue, output: SchedulerOutput) -> list[Sequence]:
        """Swap a queue's first request back in.

        Returns:
            Its sequences. None of them if there are too few blocks; then nothing has changed.
        """
        seqs = queue[0].unfinished_seqs
        if not self.swapper.can_swap_in(seqs):
            return []
        queue.pop(0)
        output.swaps_in += self.swapper.swap_in(seqs)
        return seqs

    def finish(
        self, victims: list[Sequence], swapped: bool, queue_index: int, num_preemptions: int
    ) -> None:
        """Finish the preemption of a request's sequences, whose blocks are free.

        Args:
            victims: if they were not swapped out, all of their tokens will be computed again.
            swapped: they are on the host.
            queue_index: number of requests that wait before theirs.
            num_preemptions: so far. The first is logged, and then every fiftieth.
        """
        for seq in victims:
            if not swapped:
                seq.num_computed_tokens = 0
            if self.trace is None:
                continue
            if swapped:
                for group, blocks in enumerate(self.swapper.host_tables(seq)):
                    ids = tuple(block.block_id for block in blocks)
                    self.trace.record(SwappedOut, seq.seq_id, ids, group=group)
            else:
                index = queue_index if seq is victims[0] else None
                self.trace.record(Preempted, seq.seq_id, index)
        if num_preemptions % _LOG_EVERY == 1:
            logger.warning(
                "Request %s is preempted because there is not enough KV cache; this costs a %s. "
                "A larger cache or tensor_parallel_size, or a smaller max_num_seqs avoids it. "
                "Preemptions so far: %d",
                victims[0].request.request_id,
                "copy to the host and back" if swapped else "recomputation",
                num_preemptions,
            )
