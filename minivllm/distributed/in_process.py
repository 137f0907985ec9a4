"""TogetherGroup: ranks that are threads of one process, of which one runs at a time.

Each runs up to its next collective operation, then the next one does. So a run is the same every
time, and a notebook can look at the tensors of all ranks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch

from minivllm.distributed.group import Group


class PeerError(RuntimeError):
    """A rank waits for another one that has ended, or that waits for it."""


class Turns:
    """Lets threads run one at a time, round and round, each until it waits for something.

    Args:
        size: number of threads, called ranks.
    """

    def __init__(self, size: int):
        self.size = size
        self._changed = threading.Condition()
        self._rank = 0  # whose turn it is
        self._running: set[int] = set()
        self._num_vain = 0  # turns since one of them got on

    def begin(self) -> None:
        """Start a round in which all ranks run, the first one first. Called by none of them."""
        self._rank = 0
        self._running = set(range(self.size))
        self._num_vain = 0

    def take(self, rank: int) -> None:
        """Wait for a rank's turn."""
        with self._changed:
            self._changed.wait_for(lambda: self._rank == rank)

    def end(self, rank: int) -> None:
        """End a rank's part of the round."""
        with self._changed:
            self._running.discard(rank)
            self._num_vain = 0
            self._pass_on(rank)

    def wait_for(self, rank: int, ready: Callable[[], bool]) -> None:
        """Let others run until something is ready.

        Raises:
            PeerError: if no rank that is left can make it so.
        """
        while not ready():
            with self._changed:
                self._num_vain += 1
                if self._num_vain > len(self._running):
                    raise PeerError(f"rank {rank} waits for one that does not come.")
                self._pass_on(rank)
                self._changed.wait_for(lambda: self._rank == rank)
        self._num_vain = 0

    def _pass_on(self, rank: int) -> None:
        """Give the turn to the next rank that still runs."""
        later = [(rank + step) % self.size for step in range(1, self.size + 1)]
        self._rank = next((other for other in later if other in self._running), rank)
        self._changed.notify_all()


class Mailbox:
    """Tensors that ranks of one group have put down for each other."""

    def __init__(self) -> None:
        self.parts: dict[int, dict[int, torch.Tensor]] = {}  # of a collective, by rank
        self.sent: dict[tuple[int, int], list[torch.Tensor]] = {}  # by source and destination

    def clear(self) -> None:
        """Forget all of them, after a call that failed."""
        self.parts.clear()
        self.sent.clear()


class TogetherGroup(Group):
    """A group whose ranks take turns.

    Args:
        rank, size: as for every group.
        turns: those of all ranks, and ``world_rank`` is this one's number there.
        mailbox: the one that the group's ranks share.
    """

    def __init__(self, rank: int, size: int, turns: Turns, world_rank: int, mailbox: Mailbox):
        super().__init__(rank, size)
        self._turns = turns
        self._world_rank = world_rank
        self._mailbox = mailbox
        self._num_calls = 0

    def reset(self) -> None:
        """Begin anew, after a call that failed: the ranks may have come to different places."""
        self._num_calls = 0
        self._mailbox.clear()

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        parts = self._exchange(x)
        total = parts[0] + parts[1]
        for part in parts[2:]:
            total += part
        return x.copy_(total)

    def all_gather(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        return torch.cat(self._exchange(x), dim)

    def send(self, tensors: Sequence[torch.Tensor], dst: int) -> None:
        copies = [x.clone() for x in tensors]
        self._mailbox.sent.setdefault((self.rank, dst), []).extend(copies)

    def recv(self, tensors: Sequence[torch.Tensor], src: int) -> None:
        queue = self._mailbox.sent.setdefault((src, self.rank), [])
        self._turns.wait_for(self._world_rank, lambda: len(queue) >= len(tensors))
        for x in tensors:
            x.copy_(queue.pop(0))

    def _exchange(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Put a copy down and wait for the others'. Returns all, in order of ranks."""
        parts = self._mailbox.parts.setdefault(self._num_calls, {})
        parts[self.rank] = x.clone()
        # all have read the last but one: they were at the next
        self._mailbox.parts.pop(self._num_calls - 2, None)
        self._num_calls += 1
        self._turns.wait_for(self._world_rank, lambda: len(parts) == self.size)
        return [parts[rank] for rank in range(self.size)]
