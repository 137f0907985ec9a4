"""EngineProcess: an engine in a process of its own, which loads once and then runs on request.

Peers bring libraries, threads and environment variables that must not meet ours, and memory can
only be told apart by process. Since they stay loaded, engines can still take turns in one run.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from minivllm.cpu.spin import SPIN_COUNT
from minivllm.lab.bench.machine import peak_memory
from minivllm.lab.bench.workloads import Round

SECONDS_TO_LEAVE = 3.0


@dataclass(frozen=True)
class Run:
    """Seconds, answers and memory of one run of an engine."""

    answers: list[list[int]]  # token ids, as Engine.run returns them
    seconds: float  # wall time around Engine.run, in its own process
    num_cached_tokens: int  # of all prompts, those that a prefix cache had
    memory: dict[str, float]  # see minivllm.lab.bench.machine


class EngineProcess:
    """Starts the process. ``load`` comes next, then any number of ``run``.

    Args:
        name: what messages call it.
        num_threads: of OpenMP, and so of torch.
        python: the interpreter, of another environment maybe; None: this one.
    """

    def __init__(self, name: str, num_threads: int, python: Path | None = None):
        self.name = name
        self._busy = False
        environment = {  # set before anything that reads it is imported there
            "OMP_NUM_THREADS": str(num_threads),
            "MINIVLLM_LOGGING_LEVEL": os.environ.get("MINIVLLM_LOGGING_LEVEL", "WARNING"),
            "GOMP_SPINCOUNT": spin_count(name),
        }
        if python is None:
            context = multiprocessing.get_context("spawn")
            self._connection, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(theirs, environment), daemon=True)
            self._process.start()
            theirs.close()
        else:
            self._process = OtherPython(python)
            self._connection = self._process.connection
            with suppress(BrokenPipeError):  # it has ended already: the first job will say so
                self._connection.send(environment)

    def load(self, engine_class: type, *args: Any, **options: Any) -> None:
        """Make the engine.

        Raises:
            ChildProcessError: if that failed, with the reason in one line. So for ``run``.
        """
        self._ask((engine_class, args, options))

    def run(self, rounds: list[Round]) -> Run:
        """One run, timed."""
        return self._ask(rounds)

    def close(self) -> None:
        """Terminate the process."""
        self._connection.close()  # if it waits for work, it now leaves by itself
        if not self._busy:
            self._process.join(timeout=SECONDS_TO_LEAVE)
        self._process.kill()
        self._process.join()

    def _ask(self, job: Any) -> Any:
        self._busy = True
        try:
            self._connection.send(job)
            reply = self._connection.recv()
        except (EOFError, OSError) as error:
            self._process.join()
            raise ChildProcessError(
                f"{self.name} ended in the middle of its work, with exit code "
                f"{self._process.exitcode} (-9 is often a lack of memory)."
            ) from error
        self._busy = False
        if isinstance(reply, str):
            raise ChildProcessError(f"{self.name} failed: {reply}")
        return reply


@contextmanager
def engine_processes(
    engine_classes: list[type],
    num_threads: int,
    *args: Any,
    peer_python: Path | None = None,
    **options: Any,
) -> Iterator[list[EngineProcess]]:
    """One process for each engine, loaded one after the other; all end with the ``with`` block.

    Args:
        engine_classes: see ``minivllm.lab.bench.engines.Engine``.
        num_threads: of each.
        peer_python: the interpreter of the peers; None: this one.
        *args, **options: what every engine is made with.

    Raises:
        ChildProcessError: if one cannot be loaded.
    """
    engines: list[EngineProcess] = []
    try:
        for engine_class in engine_classes:
            python = peer_python if engine_class.name != "minivllm" else None
            engines.append(EngineProcess(engine_class.name, num_threads, python))
            engines[-1].load(engine_class, *args, **options)
        yield engines
    finally:
        for engine in engines:
            engine.close()


class OtherPython:
    """A process under another interpreter, with the methods of ``multiprocessing.Process``.

    Linux and macOS: the process inherits its end of the pipe.
    """

    def __init__(self, python: Path):
        self.connection, theirs = multiprocessing.Pipe()
        code = "import sys; from minivllm.lab.bench.process import serve_on; serve_on(sys.argv[1])"
        root = Path(__file__).parents[3]  # its environment need not have minivllm
        self._process = subprocess.Popen(
            [str(python), "-c", code, str(theirs.fileno())],
            env=os.environ | {"PYTHONPATH": str(root)},
            pass_fds=[theirs.fileno()],
        )
        theirs.close()

    @property
    def exitcode(self) -> int | None:
        return self._process.returncode

    def join(self, timeout: float | None = None) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)

    def kill(self) -> None:
        self._process.kill()


def serve_on(handle: str) -> None:
    """What ``OtherPython`` runs: the number of the pipe's end that it has inherited."""
    connection = Connection(int(handle))
    _serve(connection, connection.recv())


def take_turns(
    engines: list[EngineProcess], rounds: list[Round], repeats: int
) -> dict[str, list[Run]]:
    """Run every engine once to warm up, then in turn. All but the first runs, by engine."""
    for engine in engines:
        engine.run(rounds)
    runs: dict[str, list[Run]] = {engine.name: [] for engine in engines}
    for _ in range(repeats):
        for engine in engines:
            runs[engine.name].append(engine.run(rounds))
    return runs


def spin_count(name: str) -> str | None:
    """``GOMP_SPINCOUNT`` of an engine's process: a peer has its own default, not ours."""
    inherited = os.environ.get("GOMP_SPINCOUNT")
    return None if name != "minivllm" and inherited == SPIN_COUNT else inherited


def _serve(connection: Connection, environment: dict[str, str | None]) -> None:
    """What the process does: a run whenever one is asked for. A failure ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    if multiprocessing.parent_process() is not None:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    os.dup2(2, 1)  # what a peer prints is not part of our output
    for key, value in environment.items():
        os.environ.pop(key, None)
        if value is not None:
            os.environ[key] = value
    try:
        engine_class, args, options = connection.recv()  # imports the engine's file
        engine = engine_class(*args, **options)
        connection.send(None)
        while True:
            connection.send(timed_run(engine, connection.recv()))
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        with suppress(OSError):  # it may be the parent that is gone
            connection.send(reason)


def timed_run(engine: Any, rounds: list[Round]) -> Run:
    """One run of an engine in this process."""
    gc.collect()
    with engine.fresh(rounds):
        begin = time.perf_counter()
        answers = engine.run(rounds)
        seconds = time.perf_counter() - begin
    return Run(answers, seconds, engine.num_cached_tokens, peak_memory())


def _end_with_parent() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)
