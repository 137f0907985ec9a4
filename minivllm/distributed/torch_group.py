"""TorchGroup: ranks in processes of their own, joined by torch.distributed (gloo, or nccl)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from minivllm.distributed.group import Group


class TorchGroup(Group):
    """A group of torch.distributed.

    Args:
        ranks: the world's numbers of its ranks, in order. All ranks of the world must make all
            groups, in the same order.
        world_rank: this one's number there.
    """

    def __init__(self, ranks: list[int], world_rank: int):
        super().__init__(ranks.index(world_rank), len(ranks))
        self._ranks = ranks
        self._group: Any = dist.new_group(ranks)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x, group=self._group)
        return x

    def all_gather(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        parts = [torch.empty_like(x) for _ in range(self.size)]
        dist.all_gather(parts, x.contiguous(), group=self._group)
        return torch.cat(parts, dim)

    def send(self, tensors: Sequence[torch.Tensor], dst: int) -> None:
        for x in tensors:
            dist.send(x.contiguous(), self._ranks[dst], group=self._group)

    def recv(self, tensors: Sequence[torch.Tensor], src: int) -> None:
        for x in tensors:
            dist.recv(x, self._ranks[src], group=self._group)
