"""RayExecutor: a rank per actor of Ray, on one machine or on several.

Ray knows the machines. It finds a place and a GPU for each rank, starts it, brings it calls and
takes its answers in order, tells when it has died, and ends it with the engine. The rest is as
without Ray: the same worker, and groups of torch.distributed for what ranks send to each other.
(vLLM: vllm/v1/executor/ray_executor.py)
"""

from __future__ import annotations

import atexit
import logging
import os
import pickle
import re
import signal
import threading
import time
import weakref
from typing import Any

import torch.distributed as dist

from minivllm.executor.distributed import DistributedExecutor, for_ranks, pickled
from minivllm.executor.exceptions import EngineDeadError
from minivllm.executor.futures import LazyFuture
from minivllm.executor.rank_process import RankStart, answer, start_worker
from minivllm.utils.console import needs_extra

with needs_extra("ray"):
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    from minivllm.executor.ray_utils import by_node, connect, disconnect, num_cores, place

_STARTING = 120.0  # seconds until all ranks have found each other: each imports torch first
_GRACE = 15.0  # seconds between one rank's error and all the others': a dead node is noticed late
_CLOSING = 5.0  # seconds that the thread which waits for a death has to end


class RayRank:
    """A rank, as an actor."""

    def __init__(self, rank: int, name: str, has_output: bool):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine hears Ctrl-C, and decides
        self._rank, self._name, self._has_output = rank, name, has_output
        self._answers: Any = self  # calls, until there is a worker

    def __repr__(self) -> str:
        return self._name  # Ray's prefix of its log lines

    def call(self, message: bytes) -> bytes:
        """Answer a call; see ``rank_process.answer``."""
        return pickle.dumps(answer(self._answers, pickle.loads(message), self._has_output))

    def live(self) -> None:
        """Return never: what waits for this hears of the rank's end."""
        threading.Event().wait()

    def find(self) -> tuple[str, int, int]:
        """Address of this rank's machine, its process, and the port where rank 0 is found."""
        self._address, port = ray.util.get_node_ip_address(), 0
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
        (master, _, port), ranks_here = found[0], [at for at, *_ in found].count(self._address)
        num_threads = max(1, num_cores() // ranks_here)
        if self._rank > 0:
            self._store = dist.TCPStore(master, port)
        start = RankStart(self._rank, config, environment, num_threads, level)
        self._answers = start_worker(start, self._store)


class RayExecutor(DistributedExecutor):
    """Runs its ranks in actors that end with it."""

    def _init_executor(self) -> None:
        super()._init_executor()
        self._actors: list[Any] = []
        self._places: list[Any] = []  # its placement group, while there is one
        self._watchers: list[threading.Thread] = []
        self._found: list[tuple[str, int, int]] = []  # see ``RayRank.find``
        is_ours = connect(self.config.parallel_config.world_size)
        made = self._actors, self._places, self._watchers
        self._end = weakref.finalize(self, _end_ranks, *made, is_ours)
        atexit.register(self._end)  # before Ray's own end
        try:
            self._start_ranks()
            self._found = self.collective_rpc("find", _STARTING)
            environment = {k: v for k, v in os.environ.items() if k.startswith("MINIVLLM_")}
            level = logging.getLogger("minivllm").level
            config = pickle.dumps(for_ranks(self.config))
            self.collective_rpc("join", _STARTING, (config, environment, level, self._found))
            self.collective_rpc("init_device")
            self._load_model()
        except BaseException:
            self.shutdown()
            raise

    def _start_ranks(self) -> None:
        kind = "GPU" if self.config.device_config.device.type == "cuda" else "CPU"
        group = place(kind, len(self._names))
        self._places.append(group)
        parallel = self.config.parallel_config
        make = ray.remote(concurrency_groups={"life": 1})(RayRank)
        for rank, bundle in enumerate(by_node(group)):
            strategy = PlacementGroupSchedulingStrategy(group, bundle)
            actor = make.options(
                num_cpus=kind == "CPU", num_gpus=kind == "GPU", scheduling_strategy=strategy
            ).remote(rank, self._names[rank], rank == parallel.output_rank)
            self._actors.append(actor)
        lives = [a.live.options(concurrency_group="life").remote() for a in self._actors]
        watcher = threading.Thread(
            target=_watch, args=(weakref.ref(self), lives), name="minivllm-ranks", daemon=True
        )
        self._watchers.append(watcher)
        watcher.start()

    def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: tuple = (),
        kwargs: dict[str, Any] | None = None,
        non_block: bool = False,
    ) -> Any:
        self.check_health()
        message = pickled((method, args, kwargs or {}))
        replies = [actor.call.remote(message) for actor in self._actors]
        if non_block:
            return LazyFuture(lambda seconds: self._results(self._gather(replies, seconds)))
        return self._results(self._gather(replies, timeout))

    def shutdown(self) -> None:
        self._end()

    def _gather(self, refs: list[Any], timeout: float | None) -> dict[int, tuple]:
        """Wait for all ranks' replies to a call; not for all if one has failed and others hang."""
        deadline = None if timeout is None else time.monotonic() + timeout
        replies: dict[int, tuple] = {}
        waiting = {ref: rank for rank, ref in enumerate(refs)}
        while waiting:
            failed = [rank for rank, reply in replies.items() if not reply[0]]
            if failed and deadline is None:  # the others may wait for it inside a collective
                deadline = time.monotonic() + _GRACE
            seconds = None if deadline is None else max(0, deadline - time.monotonic())
            done, _ = ray.wait(list(waiting), timeout=seconds)
            for ref in done:
                rank = waiting.pop(ref)
                try:
                    replies[rank] = pickle.loads(ray.get(ref))
                except ray.exceptions.RayError as error:
                    raise self._has_ended(rank, error) from None
            if not done and failed:
                break
            if not done:
                late = ", ".join(self._names[rank] for rank in waiting.values())
                raise TimeoutError(f"no answer within {timeout} seconds from {late}.")
        return replies

    def _has_ended(self, rank: int, error: BaseException) -> EngineDeadError:
        """Return the error to raise after Ray's about a rank."""
        address, pid, _ = self._found[rank] if self._found else ("?", "?", 0)
        known = re.search(r"is dead because (.*?)\.(?:\s|$)", str(error))
        reason = known[1] if known else str(error).strip().splitlines()[-1]  # of a traceback
        if isinstance(error, ray.exceptions.ActorUnavailableError):
            reason = "Ray has lost its connection to it"
        return self._fail(
            f"{self._names[rank]} (pid {pid} at {address}) died unexpectedly: {reason}"
        )

    def _kill(self) -> None:
        _kill_ranks(self._actors, self._places)


def _watch(executor: weakref.ref[RayExecutor], lives: list[Any]) -> None:
    """Thread main: wait for the end of a rank, which may come while no call is made."""
    (ended,), _ = ray.wait(lives)
    alive = executor()
    if alive is not None and alive._end.alive:
        try:
            ray.get(ended)
        except ray.exceptions.RayError as error:
            alive._has_ended(lives.index(ended), error)


def _kill_ranks(actors: list[Any], places: list[Any]) -> None:
    for actor in actors:
        ray.kill(actor)
    while places:
        ray.util.remove_placement_group(places.pop())


def _end_ranks(
    actors: list[Any], places: list[Any], watchers: list[threading.Thread], is_ours: bool
) -> None:
    """End the ranks, and the connection to Ray if no other executor uses it."""
    if ray.is_initialized():
        _kill_ranks(actors, places)
    actors.clear()
    for watcher in watchers:  # it asks Ray, and must have heard of the end before Ray ends
        if watcher is not threading.current_thread():
            watcher.join(_CLOSING)
    if is_ours:
        disconnect()
