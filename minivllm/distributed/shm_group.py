"""ShmGroup: sums and concatenations through memory that ranks on one machine share.

A rank writes its tensor into its buffer, then the number of the operation into its flag, waits for
all flags to come that far, and reads all buffers. Two buffers a rank are enough: a rank that writes
the next but one has seen that all have written the next, and so have read this. Every rank adds in
the same order, so all have the same bits. A tenth of the time of gloo, which goes through sockets.
(vLLM: CPUCommunicator in vllm/distributed/device_communicators/cpu_communicator.py)
"""

from __future__ import annotations

import os
import time

import torch

from minivllm.distributed.group import SharedMemory
from minivllm.distributed.torch_group import TorchGroup

BUFFER_BYTES = 2**20
_FLAG_BYTES = 64  # a cache line each, so that no rank's writes slow down another's reads
_SPINS = 2000  # looks at a flag before the core is offered to others
_PATIENCE = 600.0  # seconds; an engine ends its ranks long before


def shared_bytes(size: int) -> int:
    """Bytes of shared memory that a group of this size needs."""
    return size * (_FLAG_BYTES + 2 * BUFFER_BYTES)


class ShmGroup(TorchGroup):
    """A group on one machine whose processors keep the order of writes (x86).

    Args:
        ranks, world_rank: as for ``TorchGroup``, which sends and receives.
        memory: ``shared_bytes`` of zeros that the group's ranks share.
    """

    def __init__(self, ranks: list[int], world_rank: int, memory: SharedMemory):
        super().__init__(ranks, world_rank)
        view = memoryview(memory).cast("B")
        flags = view[: self.size * _FLAG_BYTES].cast("q")
        self._flags = [flags[i * _FLAG_BYTES // 8 :][:1] for i in range(self.size)]
        self._others = [flag for i, flag in enumerate(self._flags) if i != self.rank]
        whole = torch.frombuffer(view[self.size * _FLAG_BYTES :], dtype=torch.uint8)
        self._buffers = whole.view(2, self.size, BUFFER_BYTES)
        self._num_calls = 0

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        for part in x.view(-1).split(BUFFER_BYTES // x.element_size()):
            buffers = self._exchange(part)
            torch.add(buffers[0], buffers[1], out=part)
            for other in buffers[2:]:
                part += other
        return x

    def all_gather(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        x = x.contiguous()
        found = x.new_empty((self.size, *x.shape))
        start = 0
        flat = found.view(self.size, -1)
        for part in x.view(-1).split(BUFFER_BYTES // x.element_size()):
            stop = start + len(part)
            for rank, buffer in enumerate(self._exchange(part)):
                flat[rank, start:stop] = buffer
            start = stop
        return torch.cat(tuple(found), dim)

    def _exchange(self, part: torch.Tensor) -> list[torch.Tensor]:
        """Show a part to the others and wait for theirs. Returns all, in order of ranks."""
        parity = self._num_calls % 2
        self._num_calls += 1
        views = [b[: part.nbytes].view(part.dtype) for b in self._buffers[parity]]
        views[self.rank].copy_(part)
        self._flags[self.rank][0] = self._num_calls
        for flag in self._others:
            self._wait(flag)
        return views

    def _wait(self, flag: memoryview) -> None:
        """Spin until a flag is as far as this rank, then yield the core between looks."""
        wanted = self._num_calls
        for _ in range(_SPINS):
            if flag[0] >= wanted:
                return
        deadline = time.monotonic() + _PATIENCE
        while flag[0] < wanted:
            os.sched_yield()
            if time.monotonic() > deadline:
                raise TimeoutError(f"a rank has not come to collective {wanted}.")
