"""RecordedGroup: a group that notes each operation, for the trace."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from minivllm.distributed.group import Group
from minivllm.trace.rank_work import Operation


class RecordedGroup(Group):
    """A group whose operations are noted.

    Args:
        group: computes them.
        name: "tp" or "pp".
        operations: gets a note of each, when it is done.
    """

    def __init__(self, group: Group, name: str, operations: list[Operation]):
        super().__init__(group.rank, group.size)
        self._group = group
        self._name = name
        self.operations = operations

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        with self._noted("all_reduce", [x]):
            return self._group.all_reduce(x)

    def all_gather(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        with self._noted("all_gather", [x]):
            return self._group.all_gather(x, dim)

    def send(self, tensors: Sequence[torch.Tensor], dst: int) -> None:
        with self._noted("send", tensors):
            self._group.send(tensors, dst)

    def recv(self, tensors: Sequence[torch.Tensor], src: int) -> None:
        with self._noted("recv", tensors):
            self._group.recv(tensors, src)

    @contextmanager
    def _noted(self, op: str, tensors: Sequence[torch.Tensor]) -> Iterator[None]:
        start = time.time()
        num_bytes = sum(x.nbytes for x in tensors)
        yield
        self.operations.append(Operation(start, time.time(), self._name, op, num_bytes))
