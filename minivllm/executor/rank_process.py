"""A rank's process: joins its groups, makes its worker, and answers calls until the engine ends.

(vLLM: ``WorkerProc`` in vllm/v1/executor/multiproc_executor.py)
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import NoReturn

import torch
import torch.distributed as dist
from tqdm.auto import tqdm

from minivllm.config.parallel import ParallelConfig
from minivllm.distributed.group import Group, ParallelState, SharedMemory
from minivllm.distributed.shard import coordinates, pp_ranks, tp_ranks
from minivllm.distributed.torch_group import TorchGroup
from minivllm.scheduling.output import ModelRunnerOutput
from minivllm.worker.traced_worker import make_worker
from minivllm.worker.worker import Worker

_SPINS = 50  # looks for a call before the rank sleeps
_CLOSING = 1.0  # seconds to end in the usual way
_PATIENCE = timedelta(minutes=10)  # of torch.distributed; an engine ends its ranks long before


@dataclass(frozen=True)
class RankStart:
    """Start data of a rank."""

    rank: int
    config: bytes  # a VllmConfig, pickled once for all ranks
    environment: dict[str, str]  # of the engine, as far as ranks want it
    num_threads: int
    log_level: int
    shared: SharedMemory | None = (
        None  # memory of its tensor-parallel group; None: torch.distributed sends
    )


def name_of(rank: int, parallel: ParallelConfig) -> str:
    """Name of a rank, in its log lines and in sentences about its end."""
    place = coordinates(rank, parallel.pipeline_parallel_size, parallel.tensor_parallel_size)
    return f"Worker_PP{place.pp}_TP{place.tp}"


def join_groups(
    rank: int, parallel: ParallelConfig, shared: SharedMemory | None = None
) -> ParallelState:
    """Make the groups of all ranks, in the same order on each. Returns this one's."""
    pp_size = parallel.pipeline_parallel_size
    tp_size = parallel.tensor_parallel_size
    mine: dict[str, Group] = {}
    for kind, members in (("tp", tp_ranks), ("pp", pp_ranks)):
        everywhere = [members(r, pp_size, tp_size) for r in range(parallel.world_size)]
        for ranks in sorted(set(map(tuple, everywhere))):
            if len(ranks) == 1:
                continue
            if rank in ranks and kind == "tp" and shared is not None:
                from minivllm.distributed.shm_group import ShmGroup

                mine[kind] = ShmGroup(list(ranks), rank, shared)
            elif rank in ranks:
                mine[kind] = TorchGroup(list(ranks), rank)
            else:
                dist.new_group(list(ranks))
    return ParallelState(rank, **mine)


def start_worker(start: RankStart, store: dist.Store) -> Worker:
    """Join the other ranks and make this one's worker, in a process of its own.

    Args:
        start: says which rank this is, and how it runs.
        store: where all ranks find each other.
    """
    os.environ.update(start.environment)
    torch.set_num_threads(start.num_threads)
    logging.getLogger("minivllm").setLevel(start.log_level)
    config = pickle.loads(start.config)
    parallel = config.parallel_config
    dist.init_process_group(
        "nccl" if config.device_config.device.type == "cuda" else "gloo",
        store=store,
        rank=start.rank,
        world_size=parallel.world_size,
        timeout=_PATIENCE,
    )
    return make_worker(config, join_groups(start.rank, parallel, start.shared))


class NoWorker:
    """Takes the place of a worker that could not be made: every call raises why."""

    def __init__(self, error: Exception):
        self._error = error

    def __getattr__(self, method: str) -> NoReturn:
        raise self._error


def run_rank(
    name: str, start: RankStart, store: str, calls: Connection, life: Connection, has_output: bool
) -> None:
    """Process main.

    Args:
        name: what its log lines begin with.
        start: see ``start_worker``.
        store: a file.
        calls: see ``answer_calls``.
        life: is closed when the engine ends, however it does.
        has_output: see ``answer``.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine hears Ctrl-C, and decides
    threading.Thread(target=_end_with, args=(life,), daemon=True).start()
    tqdm.set_lock(threading.RLock())  # its own is a semaphore that a killed rank would leave
    _name_log_lines(name)
    worker: Worker | NoWorker
    try:
        worker = start_worker(start, dist.FileStore(store))
    except Exception as error:
        worker = NoWorker(error)
    answer_calls(worker, calls, has_output)


def answer_calls(worker: object, calls: Connection, has_output: bool) -> None:
    """Call the worker's methods as messages say, and send back what each returned or raised.

    Args:
        worker: the object whose methods they are.
        calls: brings (number, call), takes (number, ok, value, traceback).
        has_output: see ``answer``.
    """
    while True:
        for _ in range(_SPINS):
            if calls.poll():
                break
        try:
            number, call = calls.recv()
        except (EOFError, OSError):
            return
        with suppress(OSError):  # the engine has ended, which the next look tells
            calls.send((number, *answer(worker, call, has_output)))


def answer(worker: object, call: bytes, has_output: bool) -> tuple:
    """Call a worker's method; returns (ok, what it has returned or raised, traceback).

    Args:
        worker: the object whose method it is.
        call: (method, args, kwargs), pickled: what this process does not know, such as a function
            of the engine's main module, is an error of the call, on all ranks alike.
        has_output: whether its tokens are the ones that the engine takes.
    """
    try:
        method, args, kwargs = pickle.loads(call)
        value = getattr(worker, method)(*args, **kwargs)
        if not has_output and isinstance(value, ModelRunnerOutput):
            value = ModelRunnerOutput(  # its tokens are not wanted
                rank_work=value.rank_work, kv_connector_output=value.kv_connector_output
            )
        return True, value, ""
    except BaseException as error:
        return False, _sendable(error), traceback.format_exc()


def _sendable(error: BaseException) -> BaseException:
    """The error, or a RuntimeError with its text if it cannot be sent to another process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _end_with(life: Connection) -> None:
    """Thread main: end the process when the engine has closed its end, whatever is computed."""
    try:
        life.recv()
    except (EOFError, OSError):
        time.sleep(_CLOSING)  # it ends by itself, unless it waits for a rank that has ended
        os._exit(0)


def _name_log_lines(name: str) -> None:
    for handler in logging.getLogger("minivllm").handlers:
        form = handler.formatter._fmt if handler.formatter else "%(message)s"
        handler.setFormatter(logging.Formatter(f"({name} pid={os.getpid()}) {form}"))
