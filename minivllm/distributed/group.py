"""Group: ranks that compute together, as one of them sees it.

A collective operation is called by every rank of a group, in the same order, with tensors of one
shape and dtype. (vLLM: GroupCoordinator, vllm/distributed/parallel_state.py)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from ctypes import Array, c_byte
from dataclasses import dataclass, field

import torch

SharedMemory = Array[c_byte]  # what ranks of one machine add their tensors up in


class Group(ABC):
    """Ranks of one group, and which of them this is.

    Args:
        rank: this one's number in the group, from 0.
        size: number of ranks.
    """

    def __init__(self, rank: int, size: int):
        self.rank = rank
        self.size = size

    @abstractmethod
    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Sum of all ranks' ``x``: the same bits on every rank. ``x`` may be overwritten."""

    @abstractmethod
    def all_gather(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """All ranks' ``x`` side by side along a dimension, in the order of ranks."""

    @abstractmethod
    def send(self, tensors: Sequence[torch.Tensor], dst: int) -> None:
        """Send tensors to another rank of the group, which receives them."""

    @abstractmethod
    def recv(self, tensors: Sequence[torch.Tensor], src: int) -> None:
        """Fill tensors, of the shapes and dtypes of those that another rank sends."""


class Alone(Group):
    """Group of one rank: every operation is the identity."""

    def __init__(self):
        super().__init__(rank=0, size=1)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def all_gather(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        return x

    def send(self, tensors: Sequence[torch.Tensor], dst: int) -> None:
        raise ValueError(f"a group of one rank has no rank {dst} to send to.")

    def recv(self, tensors: Sequence[torch.Tensor], src: int) -> None:
        raise ValueError(f"a group of one rank has no rank {src} to receive from.")


@dataclass(frozen=True)
class ParallelState:
    """Place of a rank: its number among all, and the two groups that it is in."""

    rank: int = 0
    tp: Group = field(default_factory=Alone)  # ranks that share its layers
    pp: Group = field(default_factory=Alone)  # stages of its pipeline
