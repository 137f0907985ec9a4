"""Slot usage: how the slots of the KV cache were used over a whole run, for every manager."""

from __future__ import annotations

from minivllm.lab.contiguous.manager import ContiguousKVCacheManager, SlotUsage
from minivllm.scheduling.scheduler import Scheduler


class SlotMeter:
    """Time-weighted sums of ``SlotUsage``. Without loops, since every step is added."""

    def __init__(self):
        self.seconds = 0.0
        self._held_seconds = 0.0  # the share of held slots that hold tokens, times seconds
        self._tokens = self._reserved = self._internal = 0.0  # slots times seconds
        self._rounding = self._external = self._free = 0.0

    def add(self, seconds: float, usage: tuple[float, ...]) -> None:
        """Add a usage, as the numbers of ``SlotUsage``, that lasted so long."""
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

    def __add__(self, other: SlotMeter) -> SlotMeter:
        """Both: pools of replicas are one pool."""
        total = SlotMeter()
        for name, value in vars(self).items():
            setattr(total, name, value + getattr(other, name))
        return total

    @property
    def shares(self) -> SlotUsage:
        """The mean over time as shares of the whole pool; all zeros if nothing was added."""
        sums = SlotUsage(
            tokens=self._tokens,
            reserved=self._reserved,
            internal=self._internal,
            rounding=self._rounding,
            external=self._external,
            free=self._free,
        )
        total = sum(sums) or 1.0
        return SlotUsage._make(part / total for part in sums)

    @property
    def tokens_in_held(self) -> float:
        """The share of held slots that hold tokens, mean over time; 1 if nothing was held."""
        return self._held_seconds / self.seconds if self.seconds else 1.0


class MemoryMeter:
    """Time-weighted usage of a scheduler's KV cache, step by step.

    Attributes:
        all_steps: what the slots did, all the time.
        under_load: the same over those steps in which a request had to wait.
    """

    def __init__(self, scheduler: Scheduler):
        self.scheduler = scheduler
        self.all_steps = SlotMeter()
        self.under_load = SlotMeter()
        self._is_contiguous = isinstance(scheduler.kv_manager, ContiguousKVCacheManager)
        self._held = self._unshared = 0.0  # slots times seconds

    def add(self, seconds: float, num_seen: int, num_empty: int) -> None:
        """Add a scheduled step; what it writes counts as written.

        Of blocks, only a sequence's last one can hold empty slots. Most of them are about to be
        filled, but all are called internal waste here, which is more than is wasted, never less.
        What the prefix cache keeps of those who left is free: it goes when asked.

        Args:
            seconds: that the step takes.
            num_seen: over all running sequences, their tokens with K and V.
            num_empty: over all running sequences, the empty slots in their last blocks.
        """
        scheduler = self.scheduler
        manager = scheduler.kv_manager
        waiting = scheduler.waiting
        if self._is_contiguous:
            usage = manager.slot_usage(waiting[0].seqs[0] if waiting else None)
        else:
            pool = manager.block_pool
            size = manager.block_size
            free = pool.num_free_blocks * size
            held = pool.num_usable_blocks * size - free  # a shared block is counted once
            self._held += held * seconds
            self._unshared += (num_seen + num_empty) * seconds
            usage = held - num_empty, 0, num_empty, 0, 0, free
        self.all_steps.add(seconds, usage)
        if waiting:
            self.under_load.add(seconds, usage)

    def __add__(self, other: MemoryMeter) -> MemoryMeter:
        """Both: pools of replicas are one pool."""
        total = MemoryMeter(self.scheduler)
        for name in ("all_steps", "under_load", "_held", "_unshared"):
            setattr(total, name, getattr(self, name) + getattr(other, name))
        return total

    @property
    def saved_by_sharing(self) -> float:
        """The share of blocks that sharing saves, mean over time, 0 to 1.

        What all sequences would hold if each had blocks of its own, less what they do hold, divided
        by the first (PagedAttention paper, section 6.3).
        """
        return 1 - self._held / self._unshared if self._unshared else 0.0
