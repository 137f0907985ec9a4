"""EngineCoreClient: the connection of ``AsyncLLM`` to the loop that runs its engine.

Two forms with one interface: a thread of this process, where everything is in reach but under the
same interpreter lock, and a process, where only messages cross.
(vLLM: vllm/v1/engine/core_client.py)
"""

from __future__ import annotations

import multiprocessing
import pickle
import queue
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection

from minivllm.engine.arg_utils import EngineArgs
from minivllm.engine.core_loop import STOP, Batch, EngineCoreLoop
from minivllm.engine.exceptions import EngineDeadError
from minivllm.engine.gc_utils import freeze_gc_heap
from minivllm.engine.llm_engine import LLMEngine
from minivllm.engine.serial_utils import BatchDecoder, encode

OnBatch = Callable[[Batch], None]
OnDeath = Callable[[BaseException], None]


class Inbox(queue.SimpleQueue):
    """Messages for an engine, from whichever thread."""

    def receive(self, seconds: float | None) -> list[tuple]:
        """All that are there; see ``EngineCoreLoop``. Raises what was put in as an error."""
        messages: list[tuple] = []
        with suppress(queue.Empty):
            messages.append(self.get(seconds != 0, seconds))
            while True:
                messages.append(self.get_nowait())
        for message in messages:
            if isinstance(message, BaseException):
                raise message
        return messages


class ThreadClient:
    """An engine in a thread of this process, which makes it, too.

    Were it made elsewhere, that thread would keep OpenMP threads of its own from loading the model,
    and where there are more of these than processors all of them sleep after each operation instead
    of waiting for the next one: a step then takes a quarter more time.

    Args:
        args: what to run.
        on_batch: called from that thread with what every turn has to say.
        on_death: called from that thread with the error that has escaped a step.

    Raises:
        ValueError, FileNotFoundError: what making the engine has raised there.
    """

    def __init__(self, args: EngineArgs, on_batch: OnBatch, on_death: OnDeath):
        self._inbox = Inbox()
        made: Future[LLMEngine] = Future()
        self._thread = threading.Thread(
            target=_run_thread, args=(args, made, self._inbox, on_batch, on_death),
            name="minivllm-engine", daemon=True,
        )  # fmt: skip
        self._thread.start()
        try:
            self.engine: LLMEngine | None = made.result()
        except BaseException:  # also Ctrl-C, which only this thread hears
            self.shutdown()
            raise
        self.facts = self.engine.facts()

    def submit(self, message: tuple) -> None:
        """Send a message; see ``EngineCoreLoop``."""
        self._inbox.put(message)

    def shutdown(self, timeout: float = 10.0) -> None:
        """Stop the thread after its current step. A second call does nothing."""
        self._inbox.put(STOP)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)


def _run_thread(
    args: EngineArgs, made: Future[LLMEngine], inbox: Inbox, on_batch: OnBatch, on_death: OnDeath
) -> None:
    """What the thread does."""
    try:
        engine = LLMEngine(args)
    except BaseException as error:
        return made.set_exception(error)
    made.set_result(engine)
    try:
        EngineCoreLoop(engine, inbox.receive, on_batch).run()
    except BaseException as error:
        on_death(error)


class ProcessClient:
    """An engine in a process of its own, behind a pipe; a thread of this process reads its outputs.

    Args:
        args, on_batch, on_death: as for ``ThreadClient``; all of ``args`` must be picklable.

    Raises:
        ValueError, FileNotFoundError: what making the engine has raised there.
    """

    engine: LLMEngine | None = None  # out of reach

    def __init__(self, args: EngineArgs, on_batch: OnBatch, on_death: OnDeath):
        self._on_batch, self._on_death = on_batch, on_death
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_run_engine, args=(other, args), daemon=True)
        self._process.start()
        other.close()
        self._stopping = False
        self._decoder = BatchDecoder()
        self._sending = threading.Lock()
        try:
            self.facts = self._pipe.recv()
        except EOFError as error:
            raise EngineDeadError("its process has ended before it began") from error
        if isinstance(self.facts, BaseException):
            raise self.facts
        self._thread = threading.Thread(target=self._listen, name="minivllm-engine", daemon=True)
        self._thread.start()

    def submit(self, message: tuple) -> None:
        """Send a message; see ``EngineCoreLoop``. Raises ``ValueError`` if it cannot be pickled."""
        if message[0] == "add":
            self._decoder.remember(message[1])
        try:
            with self._sending:
                self._pipe.send(message)
        except OSError:
            pass  # the listener has noticed, too
        except Exception as error:
            if message[0] == "add":
                self._decoder.forget(message[1].request_id)
            raise ValueError(f"this cannot be sent to the engine's process: {error}") from error

    def shutdown(self, timeout: float = 10.0) -> None:
        """Stop the process after its current step; by force, if that takes too long."""
        self._stopping = True
        self.submit(STOP)
        self._process.join(timeout)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _listen(self) -> None:
        try:
            while not isinstance(said := self._pipe.recv(), BaseException):
                self._on_batch(self._decoder.decode(said))
        except (EOFError, OSError):
            self._process.join(1)
            said = EngineDeadError(f"its process has ended: {self._process.exitcode}")
        except Exception as error:  # nobody may wait for a thread that has ended
            said = error
        if not self._stopping:
            self._on_death(said)


def _read(pipe: Connection, inbox: Inbox) -> None:
    """Empty the pipe also while a step is computed: a full one would hold up who writes to it."""
    while True:
        try:
            inbox.put(pipe.recv())
        except (EOFError, OSError):  # the parent is gone
            return inbox.put(STOP)
        except Exception as error:  # what this process cannot unpickle
            return inbox.put(error)


def _send(pipe: Connection, batch: Batch) -> None:
    """Send a batch. Where a call's result cannot be pickled, that is the caller's error."""
    for place, (number, value) in enumerate(batch.results):
        try:
            pickle.dumps(value)
        except Exception as error:
            refused = ValueError(f"this result cannot be sent to another process: {error}")
            batch.results[place] = (number, refused)
    pipe.send(encode(batch))


def _run_engine(pipe: Connection, args: EngineArgs) -> None:
    """Main function of the engine's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its parent decides when it ends

    inbox = Inbox()
    try:
        engine = LLMEngine(args)
        freeze_gc_heap()
        threading.Thread(target=_read, args=(pipe, inbox), daemon=True).start()
        pipe.send(engine.facts())
        EngineCoreLoop(engine, inbox.receive, partial(_send, pipe)).run()
    except (ValueError, OSError) as error:
        pipe.send(error)
    except BaseException as error:
        pipe.send(RuntimeError(repr(error)))
        raise
