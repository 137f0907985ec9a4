"""RayRank: a rank in an actor of Ray, which calls its worker's methods.

(vLLM: ``RayWorkerWrapper`` in vllm/v1/executor/ray_utils.py)
"""

from __future__ import annotations

import os
import pickle
import signal
import threading

import ray
import torch.distributed as dist

from minivllm.executor.rank_process import RankStart, answer, start_worker
from minivllm.executor.ray_utils import num_cores


class RayRank:
    """A rank, as an actor."""

    def __init__(self, rank: int, name: str, has_output: bool):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine hears Ctrl-C, and decides
        self._rank = rank
        self._name = name
        self._has_output = has_output
        self._answers: object = self  # calls, until there is a worker

    def __repr__(self) -> str:
        return self._name  # Ray's prefix of its log lines

    def call(self, message: bytes) -> bytes:
        """Answer a call; see ``rank_process.answer``."""
        return pickle.dumps(answer(self._answers, message, self._has_output))

    def live(self) -> None:
        """Return never: what waits for this hears of the rank's end."""
        threading.Event().wait()

    def find(self) -> tuple[str, int, int]:
        """Address of this rank's machine, its process, and the port where rank 0 is found."""
        self._address = ray.util.get_node_ip_address()
        port = 0
        if self._rank == 0:
            self._store = dist.TCPStore(self._address, 0, is_master=True, wait_for_workers=False)
            port = self._store.port  # a free one
        return self._address, os.getpid(), port

    def join(self, config: bytes, environment: dict, level: int, found: list) -> None:
        """Join the other ranks.

        Args:
            config, environment, level: see ``RankStart``.
            found: what ``find`` has returned on all ranks.
        """
        master, _, port = found[0]
        ranks_here = [address for address, *_ in found].count(self._address)
        num_threads = max(1, num_cores() // ranks_here)
        if self._rank > 0:
            self._store = dist.TCPStore(master, port)
        start = RankStart(self._rank, config, environment, num_threads, level)
        self._answers = start_worker(start, self._store)
