"""MultiprocExecutor: a process per rank, on this machine.

A call is pickled once and goes down a pipe to every rank; each sends back what its worker has
returned or raised. (vLLM: vllm/v1/executor/multiproc_executor.py)
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import platform
import shutil
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from minivllm.distributed.group import SharedMemory
from minivllm.executor.distributed import DistributedExecutor, for_ranks, pickled
from minivllm.executor.exceptions import EngineDeadError
from minivllm.executor.futures import LazyFuture
from minivllm.executor.rank_process import RankStart, run_rank
from minivllm.logger import init_logger

logger = init_logger(__name__)

_GRACE = 2.0  # seconds between one rank's error and all the others'
_CLOSING = 2.0  # seconds that ranks have to end by themselves
_SMALL = 2**15  # bytes of a message that a pipe takes before it is read


class MultiprocExecutor(DistributedExecutor):
    """Runs its ranks in processes that end with it."""

    def _init_executor(self) -> None:
        super()._init_executor()
        self._num_calls = 0
        # calls whose results may still be asked for, and their replies so far, by call and rank
        self._in_flight: weakref.WeakValueDictionary = weakref.WeakValueDictionary()
        self._early: dict[int, dict[int, tuple]] = {}
        self._processes: list[BaseProcess] = []
        self._calls: list[Connection] = []  # to and from each rank
        self._lives: list[Connection] = []  # closed, they end the ranks
        self._end = weakref.finalize(self, _end_ranks, self._processes, self._lives, self._calls)
        directory = Path(tempfile.mkdtemp(prefix="minivllm-"))
        try:
            self._start_ranks(str(directory / "store"))
            threading.Thread(
                target=_watch, args=(weakref.ref(self), self._processes), name="minivllm-ranks",
                daemon=True,
            ).start()  # fmt: skip
            self.collective_rpc("init_device")
            self._load_model()
        except BaseException:
            self.shutdown()
            raise
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _start_ranks(self, store: str) -> None:
        parallel = self.config.parallel_config
        context = multiprocessing.get_context("forkserver")
        # torch and the engine are loaded once, by the server from which all ranks are forked
        kind = type(self.config.model_config.hf_config)
        context.set_forkserver_preload([run_rank.__module__, kind.__module__])
        config = pickle.dumps(for_ranks(self.config))
        cores = torch.get_num_threads()
        threads = max(1, cores // parallel.world_size)
        if parallel.world_size > cores:
            logger.info("%d ranks share %d cores: they wait for one another.",
                        parallel.world_size, cores)  # fmt: skip
        tp_size = parallel.tensor_parallel_size
        shared = [_shared_memory(context, tp_size) for _ in range(parallel.pipeline_parallel_size)]
        level = logging.getLogger("minivllm").level
        with _without_main():
            for rank, name in enumerate(self._names):
                calls, theirs = context.Pipe()
                their_life, life = context.Pipe(duplex=False)
                # a forkserver has the environment of its own beginning
                start = RankStart(
                    rank,
                    config,
                    environment=dict(os.environ),
                    num_threads=threads,
                    log_level=level,
                    shared=shared[rank // tp_size],
                )
                has_output = rank == parallel.output_rank
                process = context.Process(
                    target=run_rank, name=name, daemon=True,
                    args=(name, start, store, theirs, their_life, has_output),
                )  # fmt: skip
                process.start()
                theirs.close()
                their_life.close()
                self._processes.append(process)
                self._calls.append(calls)
                self._lives.append(life)

    def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: tuple = (),
        kwargs: dict[str, Any] | None = None,
        non_block: bool = False,
    ) -> Any:
        self.check_health()
        self._num_calls += 1
        number = self._num_calls
        message = pickled((number, pickled((method, args, kwargs or {}))))
        if len(message) > _SMALL:  # a rank that sends as much cannot take it at the same time
            for earlier in sorted(self._in_flight):
                self._gather(earlier, timeout)
        for rank, calls in enumerate(self._calls):
            try:
                calls.send_bytes(message)
            except OSError:
                raise self._has_ended(rank) from None
        if non_block:
            future = LazyFuture(lambda seconds: self._replies(number, seconds))
            self._in_flight[number] = future
            return future
        return self._replies(number, timeout)

    def shutdown(self) -> None:
        super().shutdown()
        self._end()

    def _replies(self, number: int, timeout: float | None) -> list[Any]:
        """Wait for all ranks' replies to a call. Raises as ``collective_rpc`` does."""
        replies = self._gather(number, timeout)
        del self._early[number]
        for given_up in self._early.keys() - self._in_flight.keys():
            del self._early[given_up]
        return self._results(replies)

    def _gather(self, number: int, timeout: float | None) -> dict[int, tuple]:
        """Wait for all ranks' replies to a call; not for all if one has failed and others hang."""
        deadline = None if timeout is None else time.monotonic() + timeout
        replies = self._early.setdefault(number, {})
        while len(replies) < len(self._calls):
            failed = [rank for rank, reply in replies.items() if not reply[0]]
            if failed and deadline is None:  # the others may wait for it inside a collective
                deadline = time.monotonic() + _GRACE
            for rank in self._readable(replies, deadline):
                try:
                    came, *reply = self._calls[rank].recv()
                except (EOFError, OSError):
                    raise self._has_ended(rank) from None
                if came == number:
                    replies[rank] = tuple(reply)
                elif came in self._in_flight:  # one of a call that was given up is dropped
                    self._early.setdefault(came, {})[rank] = tuple(reply)
            if deadline is not None and time.monotonic() > deadline:
                if failed:
                    break
                raise TimeoutError(f"no answer within {timeout} seconds.")
        return replies

    def _readable(self, replies: dict[int, tuple], deadline: float | None) -> list[int]:
        """Ranks whose reply is still wanted and that have sent something."""
        wanted = {c: r for r, c in enumerate(self._calls) if r not in replies}
        seconds = None if deadline is None else max(0, deadline - time.monotonic())
        ready = wait(list(wanted), seconds)
        return [rank for calls, rank in wanted.items() if calls in ready]

    def _has_ended(self, rank: int) -> EngineDeadError:
        """Return the error to raise after a rank's pipe was found closed."""
        process = self._processes[rank]
        process.join(_GRACE)
        return self._fail(
            f"{self._names[rank]} (pid {process.pid}) died unexpectedly "
            f"(exit code: {process.exitcode})"
        )

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()


def _watch(executor: weakref.ref[MultiprocExecutor], processes: list[BaseProcess]) -> None:
    """Thread main: wait for the end of a rank, which may come while no call is made."""
    ended = wait([process.sentinel for process in processes])
    alive = executor()
    if alive is not None and alive._end.alive:
        alive._has_ended(next(r for r, p in enumerate(processes) if p.sentinel in ended))


def _end_ranks(
    processes: list[BaseProcess], lives: list[Connection], calls: list[Connection]
) -> None:
    """Close what keeps ranks alive, and wait for their end."""
    for pipe in (*lives, *calls):
        with suppress(OSError):
            pipe.close()
    deadline = time.monotonic() + _CLOSING
    for process in processes:
        process.join(max(0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


def _shared_memory(context: BaseContext, size: int) -> SharedMemory | None:
    """Memory for a tensor-parallel group: a file without a name, which ends with its last user."""
    from minivllm.distributed.shm_group import shared_bytes

    ordered = platform.machine() in ("x86_64", "AMD64")
    return context.RawArray("b", shared_bytes(size)) if size > 1 and ordered else None


@contextmanager
def _without_main() -> Iterator[None]:
    """Hide the main module, which every rank would run again, to use nothing of it."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
