"""Ranks of one process that take turns, for tests of what they compute without an engine."""

from concurrent.futures import ThreadPoolExecutor

import torch

from minivllm.distributed.together import Mailbox, PeerError, TogetherGroup, Turns


class CountingGroup(TogetherGroup):
    """A group that counts its collective operations."""

    num_reduced = num_gathered = 0

    def all_reduce(self, x):
        self.num_reduced += 1
        return super().all_reduce(x)

    def all_gather(self, x, dim=-1):
        self.num_gathered += 1
        return super().all_gather(x, dim)


def run_ranks(size, call):
    """Call ``call(group)`` on each rank; returns what it returned, in order of ranks."""
    turns, mailbox = Turns(size), Mailbox()
    turns.begin()

    def run(rank):
        turns.take(rank)
        try:
            with torch.inference_mode():
                return call(CountingGroup(rank, size, turns, rank, mailbox))
        finally:
            turns.end(rank)

    with ThreadPoolExecutor(size) as threads:
        futures = [threads.submit(run, rank) for rank in range(size)]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, PeerError)):
        raise error
    return [future.result() for future in futures]
