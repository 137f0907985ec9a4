"""LoRARegistry: the adapters in host memory. Each is read and checked once, and kept while used.

(vLLM: LRUCacheWorkerLoRAManager, vllm/lora/worker_manager.py; there on the worker's side, where
files are read in the step, so that a bad adapter ends the engine.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minivllm.config.lora import LoRAConfig
from minivllm.executor.abstract import Executor
from minivllm.lora.request import LoadedLoRA, LoRARequest
from minivllm.request import Request

if TYPE_CHECKING:
    from minivllm.scheduling.scheduler import Scheduler


class LoRARegistry:
    """Adapters that have been read, by id. A step with an adapter's rows is a use of it.

    Args:
        config: says how many are kept.
        executor: its workers read the files and hold the weights.
        scheduler: adapters of its requests stay; a pinned one stays in its slot, too.
    """

    def __init__(self, config: LoRAConfig, executor: Executor, scheduler: Scheduler):
        self.max_cpu_loras = config.max_cpu_loras or config.max_loras
        self.executor = executor
        self.scheduler = scheduler
        self.slots = scheduler.lora_slots
        self.loaded: dict[int, LoadedLoRA] = {}
        self._replaced: set[LoadedLoRA] = set()  # out of the table, but held by the workers

    def load(self, request: LoRARequest) -> LoadedLoRA:
        """Read an adapter, unless it has been read; then others may have to leave.

        Raises:
            ValueError: if it cannot be read or does not fit, or its id is another one's, or all
                places are taken by pinned adapters. Nothing has changed then.
        """
        known = self.loaded.get(request.lora_int_id)
        if known is not None and not request.load_inplace:
            if known[1:3] != (request.lora_name, request.lora_path):
                raise ValueError(
                    f"lora_int_id {request.lora_int_id} is in use by {known.lora_name!r} from "
                    f"{known.lora_path!r}; choose another for {request.lora_name!r} from "
                    f"{request.lora_path!r}, or remove that adapter before."
                )
            self.slots.touch(known)
            return known
        self._check_host_memory(request)
        lora = self.executor.collective_rpc("add_lora", args=(request,))[0]
        if known is not None and known != lora:
            self.remove(known.lora_int_id)
        self.loaded[lora.lora_int_id] = lora
        self.slots.touch(lora)
        self._replaced.discard(lora)
        self._make_room()
        return lora

    def add(self, request: LoRARequest) -> bool:
        """Read an adapter. False if nothing was read, as it had been before."""
        before = self.loaded.get(request.lora_int_id)
        return self.load(request) is not before

    def load_for(self, request: Request) -> LoadedLoRA:
        """Read the adapter that a request asks for.

        Raises:
            ValueError: as ``load``, or if pinned adapters leave it no slot, ever: then none has
                been read, and none had to leave.
        """
        wanted = request.lora_request
        assert wanted is not None, "it asks for one"
        self._check_host_memory(wanted)
        if not self.slots.may_ever_run(wanted.lora_int_id):
            names = ", ".join(sorted(repr(other.lora_name) for other in self.slots.pinned))
            raise ValueError(
                f"adapter {wanted.lora_name!r} cannot run: all max_loras={self.slots.max_loras} "
                f"slots are taken by pinned adapters ({names}); remove one, or raise max_loras."
            )
        return self.load(wanted)

    def _check_host_memory(self, request: LoRARequest) -> None:
        """Raise ``ValueError`` for an adapter in whose place no other could leave."""
        is_new = request.lora_int_id not in self.loaded
        if is_new and len(self.slots.pinned) >= self.max_cpu_loras:
            raise ValueError("All items are pinned, cannot remove oldest from the cache.")

    def remove(self, lora_int_id: int) -> bool:
        """Remove an adapter; requests of its that run finish with it. False if there is none."""
        lora = self.loaded.pop(lora_int_id, None)
        if lora is not None:
            self.slots.pinned.discard(lora)
            self._replaced.add(lora)
            self._drop_unused()
        return lora is not None

    def pin(self, lora_int_id: int) -> bool:
        """Keep an adapter in host memory and, once it is there, in its slot.

        Raises:
            ValueError: if it is not loaded, or if others that wait for a slot would get none.
        """
        lora = self.loaded.get(lora_int_id)
        if lora is None:
            raise ValueError(f"Pinning failed. LoRA {lora_int_id} is not registered.")
        pinned = self.slots.pinned | {lora}
        others = self._in_use() - pinned
        if others and len(pinned) >= self.slots.max_loras:
            name = min(other.lora_name for other in others)
            raise ValueError(
                f"LoRA {lora_int_id} cannot be pinned: requests of {name!r} are unfinished, and "
                f"max_loras={self.slots.max_loras} slots would all be pinned."
            )
        self.slots.pinned.add(lora)
        return True

    def list_loras(self) -> set[int]:
        """Ids of all adapters; those that only finished requests have kept leave now."""
        self._make_room()
        return set(self.loaded)

    def _in_use(self) -> set[LoadedLoRA]:
        requests = self.scheduler.requests.values()
        return {request.lora for request in requests if request.lora is not None}

    def _make_room(self) -> None:
        """Drop adapters beyond ``max_cpu_loras``: idle ones, the least recently used first."""
        known = set(self.loaded.values())
        recent = [lora for lora in self.slots.recent if lora in known]
        keep = {*self._in_use(), *self.slots.pinned, *recent[-1:]}
        for lora in recent:
            if lora not in keep and len(self.loaded) > self.max_cpu_loras:
                self._replaced.add(self.loaded.pop(lora.lora_int_id))
        self._drop_unused()

    def _drop_unused(self) -> None:
        """Free those that are out of the table, when their last request has finished."""
        for lora in self._replaced - self._in_use():
            self._replaced.discard(lora)
            self.slots.recent.pop(lora, None)
            if lora in self.slots.slots:
                self.slots.evict(lora)
            self.executor.collective_rpc("remove_lora", args=(lora,))
