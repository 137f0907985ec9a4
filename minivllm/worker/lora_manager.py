"""WorkerLoRAManager: a worker's adapters, in host memory and in slots.

It decides nothing: the registry says what to read and to drop, the plan what goes into which slot.
(vLLM: vllm/lora/worker_manager.py)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from minivllm.lora.apply import LoRAModel
from minivllm.lora.peft import Adapter, read_adapter
from minivllm.lora.request import LoadedLoRA, LoRARequest
from minivllm.scheduling.output import SchedulerOutput


class HasLoRA(Protocol):
    """A sequence as this manager knows it."""

    lora: LoadedLoRA | None  # its adapter; None: the base model alone


class WorkerLoRAManager:
    """Adapters of one worker.

    Args:
        model: with slots.
    """

    def __init__(self, model: LoRAModel):
        self.model = model
        self.host: dict[LoadedLoRA, Adapter] = {}
        self.slots: dict[LoadedLoRA, int] = {}

    def add_lora(self, request: LoRARequest) -> LoadedLoRA:
        """Read an adapter into host memory. Raises ``ValueError`` as ``read_adapter`` does."""
        adapter = read_adapter(request, self.model.model, self.model.config)
        lora = LoadedLoRA.from_request(request, adapter.digest)
        self.host[lora] = adapter
        return lora

    def remove_lora(self, lora: LoadedLoRA) -> None:
        """Drop an adapter from host memory."""
        self.host.pop(lora, None)

    def prepare(self, scheduler_output: SchedulerOutput, states: Mapping[str, HasLoRA]) -> None:
        """Fill slots as the plan says, and say which rows of the step use them.

        Args:
            scheduler_output: the plan.
            states: of all sequences, by id.
        """
        if scheduler_output.reset:
            self.slots.clear()
        for lora, slot in scheduler_output.lora_loads:
            self.slots = {other: s for other, s in self.slots.items() if s != slot}
            self.model.set_slot(slot, self.host[lora])
            self.slots[lora] = slot
        loras = [states[seq_id].lora for seq_id in scheduler_output.num_scheduled_tokens]
        slots = [-1 if lora is None else self.slots[lora] for lora in loras]
        self.model.set_rows(slots, list(scheduler_output.num_scheduled_tokens.values()))
