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
import threading
import time
import weakref
from typing import Any

from minivllm.executor.distributed import DistributedExecutor, for_ranks, pickled
from minivllm.executor.exceptions import EngineDeadError
from minivllm.executor.futures import LazyFuture
from minivllm.utils.console import needs_extra

with needs_extra("ray"):
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    from minivllm.executor.ray_rank import RayRank
    from minivllm.executor.ray_utils import by_node, connect, disconnect, place

_STARTING = 120.0  # seconds until all ranks have found each other: each imports torch first
_GRACE = 15.0  # seconds between one rank's error and all the others': a dead node is noticed late
_CLOSING = 5.0  # seconds that the thread which waits for a death has to end


class _Call(dict[Any, int]):
    """Ray's futures of a call that have not come, with their ranks."""


class RayExecutor(DistributedExecutor):
    """Runs its ranks in actors that end with it."""

    def _init_executor(self) -> None:
        super()._init_executor()
        self._actors: list[Any] = []
        self._places: list[Any] = []  # its placement group, while there is one
        self._watchers: list[threading.Thread] = []
        # Ray's futures must be gone before the connection is: see ``disconnect``
        self._in_flight: weakref.WeakValueDictionary[int, _Call] = weakref.WeakValueDictionary()
        self._num_calls = 0
        self._found: list[tuple[str, int, int]] = []  # see ``RayRank.find``
        is_ours = connect(self.config.parallel_config.world_size)
        self._end = weakref.finalize(
            self,
            _end_ranks,
            self._actors,
            places=self._places,
            watchers=self._watchers,
            in_flight=self._in_flight,
            is_ours=is_ours,
        )
        atexit.register(self._end)  # before Ray's own end
        try:
            self._start_ranks()
            self._found = self.collective_rpc("find", _STARTING)
            self.num_machines = len({address for address, *_ in self._found})
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
        lives = _Call(
            (actor.live.options(concurrency_group="life").remote(), rank)
            for rank, actor in enumerate(self._actors)
        )
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
        waiting = _Call((actor.call.remote(message), r) for r, actor in enumerate(self._actors))
        self._num_calls += 1
        self._in_flight[self._num_calls] = waiting
        if non_block:
            return LazyFuture(lambda seconds: self._results(self._gather(waiting, seconds)))
        return self._results(self._gather(waiting, timeout))

    def shutdown(self) -> None:
        super().shutdown()
        self._end()

    def _gather(self, waiting: _Call, timeout: float | None) -> dict[int, tuple]:
        """Wait for all ranks' replies to a call; not for all if one has failed and others hang."""
        deadline = None if timeout is None else time.monotonic() + timeout
        replies: dict[int, tuple] = {}
        try:
            while waiting:
                failed = [rank for rank, reply in replies.items() if not reply[0]]
                if failed and deadline is None:  # the others may wait for it inside a collective
                    deadline = time.monotonic() + _GRACE
                seconds = None if deadline is None else max(0, deadline - time.monotonic())
                came = _take(waiting, seconds)
                for rank, reply in came.items():
                    if isinstance(reply, str):
                        raise self._has_ended(rank, reply)
                    replies[rank] = pickle.loads(reply)
                if not came and failed:
                    break
                if not came:
                    late = ", ".join(self._names[rank] for rank in waiting.values())
                    raise TimeoutError(f"no answer within {timeout} seconds from {late}.")
        finally:
            waiting.clear()
        return replies

    def _has_ended(self, rank: int, reason: str) -> EngineDeadError:
        """Return the error to raise after a rank's end."""
        address, pid, _ = self._found[rank] if self._found else ("?", "?", 0)
        return self._fail(
            f"{self._names[rank]} (pid {pid} at {address}) died unexpectedly: {reason}"
        )

    def _kill(self) -> None:
        _kill_ranks(self._actors, self._places)


def _take(waiting: _Call, seconds: float | None) -> dict[int, bytes | str]:
    """Wait for Ray's next futures and remove them. Returns results, or why there are none."""
    came: dict[int, bytes | str] = {}
    for future in ray.wait(list(waiting), timeout=seconds)[0]:
        rank = waiting.pop(future)
        try:
            came[rank] = ray.get(future)
        except ray.exceptions.ActorUnavailableError:
            came[rank] = "Ray has lost its connection to it"
        except ray.exceptions.RayError as error:
            known = re.search(r"is dead because (.*?)\.(?:\s|$)", str(error))
            came[rank] = known[1] if known else str(error).strip().splitlines()[-1]
    return came


def _watch(executor: weakref.ref[RayExecutor], lives: _Call) -> None:
    """Thread main: wait for the end of a rank, which may come while no call is made."""
    came = _take(lives, None)
    lives.clear()
    alive = executor()
    if alive is not None and alive._end.alive:
        for rank, reason in came.items():
            alive._has_ended(rank, str(reason))


def _kill_ranks(actors: list[Any], places: list[Any]) -> None:
    for actor in actors:
        ray.kill(actor)
    while places:
        ray.util.remove_placement_group(places.pop())


def _end_ranks(
    actors: list[Any],
    places: list[Any],
    watchers: list[threading.Thread],
    in_flight: weakref.WeakValueDictionary[int, _Call],
    is_ours: bool,
) -> None:
    """End the ranks, and the connection to Ray if no other executor uses it."""
    if ray.is_initialized():
        _kill_ranks(actors, places)
    actors.clear()
    for waiting in list(in_flight.values()):
        waiting.clear()
    for watcher in watchers:  # it asks Ray, and must have heard of the end before Ray ends
        if watcher is not threading.current_thread():
            watcher.join(_CLOSING)
    if is_ours:
        disconnect()
