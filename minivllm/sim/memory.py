"""How the KV memory was used over a whole run: the same count for every manager, each step."""

from __future__ import annotations

from minivllm.kv.contiguous import ContiguousKVCacheManager, SlotUsage
from minivllm.scheduling.output import SchedulerOutput
from minivllm.scheduling.scheduler import Scheduler


def slot_usage(scheduler: Scheduler, plan: SchedulerOutput) -> SlotUsage:
    """What the slots are doing while the plan runs; what it writes counts as written.

    Of blocks, only a sequence's last one can hold empty slots. Most of them are about to be filled,
    but all are called internal waste here, which is more than is wasted, never less. A shared block
    is counted once. What the prefix cache keeps of those who left is free: it goes when asked.
    """
    manager = scheduler.kv_manager
    if isinstance(manager, ContiguousKVCacheManager):
        waiting = scheduler.waiting
        return manager.slot_usage(waiting[0].seqs[0] if waiting else None)
    scheduled, size, empty = plan.num_scheduled_tokens, manager.block_size, 0
    for seq in scheduler.running:
        empty += -(seq.num_computed_tokens + scheduled.get(seq.seq_id, 0)) % size
    pool = manager.block_pool
    free = pool.num_free_blocks * size
    return SlotUsage(pool.num_usable_blocks * size - free - empty, 0, empty, 0, 0, free)


class SlotMeter:
    """Adds up slot usages, each for as long as it lasted. (Every step comes by here: no loops.)"""

    def __init__(self):
        self.seconds = 0.0
        self._held_seconds = 0.0  # the share of held slots that hold tokens, times seconds
        self._tokens = self._reserved = self._internal = 0.0  # slots times seconds
        self._rounding = self._external = self._free = 0.0

    def add(self, usage: SlotUsage, seconds: float) -> None:
        """The pool was used like this for so long."""
        tokens, reserved, internal, rounding, external, free = usage
        held = tokens + reserved + internal + rounding
        self.seconds += seconds
        self._held_seconds += seconds * tokens / held if held else seconds
        self._tokens += tokens * seconds
        self._internal += internal * seconds
        self._free += free * seconds
        if reserved or rounding or external:  # never so with blocks
            self._reserved += reserved * seconds
            self._rounding += rounding * seconds
            self._external += external * seconds

    @property
    def shares(self) -> SlotUsage:
        """The mean over time as shares of the whole pool; all zeros if nothing was added."""
        sums = SlotUsage(self._tokens, self._reserved, self._internal, self._rounding,
                         self._external, self._free)  # fmt: skip
        total = sum(sums) or 1.0
        return SlotUsage(*(part / total for part in sums))

    @property
    def tokens_in_held(self) -> float:
        """The share of held slots that hold tokens, mean over time, 0 to 1."""
        return self._held_seconds / self.seconds if self.seconds else 1.0
