"""Ranks of one process that take turns: what each computes and exchanges, without an engine.

``run_ranks(2, lambda group: group.all_reduce(parts[group.rank]))`` returns what each rank has got.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minivllm.distributed.recorded import RecordedGroup


def run_ranks(size: int, call: Callable[[RecordedGroup], Any]) -> list[Any]:
    """Call a function on each rank of a tensor-parallel group.

    Args:
        size: number of ranks.
        call: gets the group as its rank sees it; ``group.operations`` has what was exchanged.
            Ranks run one at a time, each up to its next collective operation.

    Returns:
        What each has returned, in the order of ranks.

    Raises:
        Exception: what the function raises, rather than ``PeerError`` of ranks that wait for it.
    """
    import torch

    from minivllm.distributed.group import Alone
    from minivllm.distributed.in_process import Mailbox, PeerError, TogetherGroup, Turns
    from minivllm.distributed.recorded import RecordedGroup

    turns = Turns(size)
    mailbox = Mailbox()
    turns.begin()

    def run(rank: int) -> Any:
        turns.take(rank)
        try:
            group = Alone() if size == 1 else TogetherGroup(rank, size, turns, rank, mailbox)
            with torch.inference_mode():
                return call(RecordedGroup(group, "tp", []))
        finally:
            turns.end(rank)

    with ThreadPoolExecutor(size) as threads:
        futures = [threads.submit(run, rank) for rank in range(size)]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, PeerError)):
        raise error
    return [future.result() for future in futures]
