"""Ranks of one process that take turns: what each computes and exchanges, without an engine.

``run_ranks(2, lambda group: group.all_reduce(parts[group.rank]))`` returns what each rank has got.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

    from minivllm.distributed.group import Group


class Operation(NamedTuple):
    """A collective operation of one rank: its name, and the tensor that the rank gives."""

    name: str
    shape: tuple[int, ...]
    num_bytes: int


class WatchedGroup:
    """A group that notes its collective operations.

    Attributes:
        operations: in order.
    """

    def __init__(self, group: Group):
        self.group, self.rank, self.size = group, group.rank, group.size
        self.operations: list[Operation] = []

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """``Group.all_reduce``, noted."""
        self._note("all_reduce", x)
        return self.group.all_reduce(x)

    def all_gather(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """``Group.all_gather``, noted."""
        self._note("all_gather", x)
        return self.group.all_gather(x, dim)

    def num_operations(self, name: str) -> int:
        """Number of the operations of one name."""
        return sum(operation.name == name for operation in self.operations)

    def _note(self, name: str, x: torch.Tensor) -> None:
        self.operations.append(Operation(name, tuple(x.shape), x.nbytes))


def run_ranks(size: int, call: Callable[[WatchedGroup], Any]) -> list[Any]:
    """Call a function on each rank of a tensor-parallel group.

    Args:
        size: number of ranks.
        call: gets the group as its rank sees it. Ranks run one at a time, each up to its next
            collective operation.

    Returns:
        What each has returned, in the order of ranks.

    Raises:
        Exception: what the function raises, rather than ``PeerError`` of ranks that wait for it.
    """
    import torch

    from minivllm.distributed.group import Alone
    from minivllm.distributed.together import Mailbox, PeerError, TogetherGroup, Turns

    turns, mailbox = Turns(size), Mailbox()
    turns.begin()

    def run(rank: int) -> Any:
        turns.take(rank)
        try:
            group = Alone() if size == 1 else TogetherGroup(rank, size, turns, rank, mailbox)
            with torch.inference_mode():
                return call(WatchedGroup(group))
        finally:
            turns.end(rank)

    with ThreadPoolExecutor(size) as threads:
        futures = [threads.submit(run, rank) for rank in range(size)]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, PeerError)):
        raise error
    return [future.result() for future in futures]
