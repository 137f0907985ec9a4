"""Ranks as threads that wait for one another, for tests of what they compute."""

import threading

import torch

from minivllm.distributed.group import Group


class ThreadGroup(Group):
    """A group whose ranks are threads; it counts its collective operations."""

    def __init__(self, rank, size, barrier, parts):
        super().__init__(rank, size)
        self.barrier, self.parts = barrier, parts
        self.num_reduced = self.num_gathered = 0

    def exchange(self, x):
        self.parts[self.rank] = x
        self.barrier.wait()
        parts = list(self.parts)
        self.barrier.wait()
        return parts

    def all_reduce(self, x):
        self.num_reduced += 1
        return torch.stack(self.exchange(x)).sum(0)

    def all_gather(self, x, dim=-1):
        self.num_gathered += 1
        return torch.cat(self.exchange(x), dim)

    def send(self, tensors, dst):
        raise NotImplementedError

    def recv(self, tensors, src):
        raise NotImplementedError


def run_ranks(size, call):
    """Call ``call(group)`` in a thread for each rank; returns what it returned, in order."""
    barrier, parts, results = threading.Barrier(size), [None] * size, [None] * size

    def run(rank):
        try:
            with torch.inference_mode():
                results[rank] = call(ThreadGroup(rank, size, barrier, parts))
        except BaseException as error:
            results[rank] = error
            barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    errors = [r for r in results if isinstance(r, BaseException)]
    for error in sorted(errors, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
        raise error
    return results
