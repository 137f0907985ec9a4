"""LoRASlots: which adapters are on the device, and which requests wait for a slot (notebook 17).

A slot is to an adapter what a block is to K and V: a place in memory that was allocated at the
start. The scheduler decides which adapter is where, and the worker is told in the plan.
(vLLM: vllm/lora/model_manager.py; the rule of the queue: vllm/v1/core/sched/scheduler.py)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from minivllm.lora.request import LoadedLoRA
from minivllm.request import Request, Sequence
from minivllm.trace import Trace
from minivllm.trace.records import LoRAEvicted, LoRALoaded, RequestSkipped


class LoRASlots:
    """Slots for the adapters of a step. The least recently used adapter gives way.

    Args:
        max_loras: how many there are.
        trace: listens, if given.
    """

    def __init__(self, max_loras: int, trace: Trace | None = None):
        self.max_loras = max_loras
        self.pinned: set[LoadedLoRA] = set()  # never evicted
        self.slots: OrderedDict[LoadedLoRA, int] = OrderedDict()  # least recently used first
        self._active: set[LoadedLoRA] = set()  # of the step that is planned
        self.recent: dict[LoadedLoRA, None] = {}  # all, the least recently used first
        self.trace = trace

    def touch(self, lora: LoadedLoRA) -> None:
        """Note that an adapter is used now, or has just been read."""
        self.recent.pop(lora, None)
        self.recent[lora] = None

    @staticmethod
    def in_use(running: Iterable[Sequence]) -> dict[LoadedLoRA, None]:
        """Adapters of running sequences, in their order."""
        return {seq.request.lora: None for seq in running if seq.request.lora is not None}

    def may_ever_run(self, lora_int_id: int) -> bool:
        """True unless other, pinned adapters hold all slots."""
        return len({lora_int_id, *(lora.lora_int_id for lora in self.pinned)}) <= self.max_loras

    def begin(self, running: Iterable[Sequence]) -> None:
        """Begin to admit requests beside running sequences, whose adapters keep their slots."""
        self._active = {*self.in_use(running), *self.pinned}

    def join(self, request: Request) -> bool:
        """Let a request's adapter join those of the step. False if all slots are taken."""
        lora = request.lora
        if lora is None or lora in self._active:
            return True
        if len(self._active) >= self.max_loras:
            if self.trace is not None:
                self.trace.record(RequestSkipped, request.request_id)
            return False
        self._active.add(lora)
        return True

    def activate(self, running: Iterable[Sequence]) -> list[tuple[LoadedLoRA, int]]:
        """Give each adapter of a step a slot.

        Returns:
            Those that were in none, and the slot to copy each into.
        """
        active = self.in_use(running)
        loads = []
        for lora in active:
            if lora not in self.slots:
                loads.append((lora, self._take_slot(active)))
                self.slots[lora] = loads[-1][1]
                if self.trace is not None:
                    self.trace.record(LoRALoaded, lora.lora_int_id, lora.lora_name, loads[-1][1])
            self.slots.move_to_end(lora)
            self.touch(lora)
        return loads

    def _take_slot(self, active: Iterable[LoadedLoRA]) -> int:
        """Return the lowest free slot, or that of the adapter that was used longest ago."""
        free = set(range(self.max_loras)).difference(self.slots.values())
        if free:
            return min(free)
        victim = next(lora for lora in self.slots if lora not in active and lora not in self.pinned)
        return self.evict(victim)

    def evict(self, lora: LoadedLoRA) -> int:
        """Take an adapter out of its slot. Returns the slot."""
        slot = self.slots.pop(lora)
        if self.trace is not None:
            self.trace.record(LoRAEvicted, lora.lora_int_id, lora.lora_name, slot)
        return slot

    def make_stats(self, running: Iterable[Sequence], waiting: Iterable[Request]) -> dict[str, Any]:
        """Names of adapters that have requests, for ``SchedulerStats``."""
        return {
            "running_lora_adapters": self._names(seq.request for seq in running),
            "waiting_lora_adapters": self._names(waiting),
        }

    @staticmethod
    def _names(requests: Iterable[Request]) -> list[str]:
        return sorted({request.lora.lora_name for request in requests if request.lora is not None})

    def reset(self) -> None:
        """Empty all slots, after a step that has failed: what is on the device is not known."""
        self.slots.clear()

    def check_integrity(self, running: Iterable[Sequence]) -> None:
        """Raise ``AssertionError`` unless all adapters of running sequences have their slot."""
        assert len(set(self.slots.values())) == len(self.slots) <= self.max_loras
        assert all(0 <= slot < self.max_loras for slot in self.slots.values())
        assert set(self.in_use(running)) <= set(self.slots), "an adapter in use has no slot"
