"""ThreadClient and ProcessClient: connect ``AsyncLLM`` to the loop that runs its engine core.

Both have the same interface. In a thread of this process the core is in reach, but under the same
interpreter lock; to a process of its own only messages cross.
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
from multiprocessing.util import Finalize

from minivllm.engine.arg_utils import EngineArgs
from minivllm.engine.core import EngineCore
from minivllm.engine.core_loop import STOP, EngineCoreLoop
from minivllm.engine.core_outputs import EngineCoreOutputs
from minivllm.engine.input_processor import InputProcessor
from minivllm.engine.pipeline import core_class
from minivllm.engine.serial_utils import decode, encode
from minivllm.executor.exceptions import EngineDeadError
from minivllm.utils.gc_utils import freeze_gc_heap

OnOutputs = Callable[[EngineCoreOutputs], None]
OnError = Callable[[BaseException], None]


def make_core(args: EngineArgs) -> tuple[EngineCore, InputProcessor]:
    """Make an engine core, and the input processor whose compiled grammars it uses.

    Raises:
        ValueError, FileNotFoundError: as ``LLM``.
    """
    config = args.create_engine_config()
    processor = InputProcessor.from_config(config)
    manager = processor.structured_output_manager
    return core_class(config)(config, structured_output_manager=manager), processor


class Inbox(queue.SimpleQueue):
    """Queue of messages for an engine core, from any thread."""

    def receive(self, seconds: float | None) -> list[tuple]:
        """Return all messages that have come; see ``EngineCoreLoop``. Raises an error put in."""
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
    """An engine core in a thread of this process, which makes it, too.

    Were it made elsewhere, that thread would keep OpenMP threads of its own from loading the model.
    Where there are more of these than processors, all of them sleep after each operation instead
    of waiting for the next one: a step then takes a quarter more time.

    Args:
        args: the engine's arguments.
        on_outputs: called from that thread with the outputs of every turn of the loop.
        on_error: called from that thread with the error that has escaped a step.

    Raises:
        ValueError, FileNotFoundError: as raised there while the core was made.
    """

    def __init__(self, args: EngineArgs, on_outputs: OnOutputs, on_error: OnError):
        self._inbox = Inbox()
        made: Future[tuple[EngineCore, InputProcessor]] = Future()
        self._thread = threading.Thread(
            target=_run_thread, args=(args, made, self._inbox, on_outputs, on_error),
            name="minivllm-engine", daemon=True,
        )  # fmt: skip
        self._thread.start()
        try:
            core, self.input_processor = made.result()
        except BaseException:  # also Ctrl-C, which only this thread hears
            self.shutdown()
            raise
        self.engine_core: EngineCore | None = core
        self.vllm_config, self.kv_cache_config = core.config, core.kv_cache_config

    def submit(self, message: tuple) -> None:
        """Send a message; see ``EngineCoreLoop``."""
        self._inbox.put(message)

    def shutdown(self, timeout: float = 10.0) -> None:
        """Stop the thread after its current step. A second call does nothing."""
        self._inbox.put(STOP)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)


def _run_thread(
    args: EngineArgs,
    made: Future[tuple[EngineCore, InputProcessor]],
    inbox: Inbox,
    on_outputs: OnOutputs,
    on_error: OnError,
) -> None:
    """Thread main: make the core, then run its loop."""
    try:
        core, processor = make_core(args)
    except BaseException as error:
        return made.set_exception(error)
    core.executor.register_failure_callback(inbox.put)
    made.set_result((core, processor))
    try:
        EngineCoreLoop(core, inbox.receive, on_outputs).run()
    except BaseException as error:
        on_error(error)
    finally:
        core.shutdown()


class ProcessClient:
    """An engine core in a process of its own, behind a pipe; a thread here reads its outputs.

    Args:
        args, on_outputs, on_error: as for ``ThreadClient``; all of ``args`` must be picklable.

    Raises:
        ValueError, FileNotFoundError: as raised there while the core was made.
    """

    engine_core: EngineCore | None = None  # out of reach

    def __init__(self, args: EngineArgs, on_outputs: OnOutputs, on_error: OnError):
        self._on_outputs, self._on_error = on_outputs, on_error
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_run_process, args=(other, args))
        self._process.start()  # not a daemon: its ranks may be processes of its own
        # Python waits for its processes before it finalizes objects, and this one waits for STOP
        Finalize(self, _close, (self._pipe,), exitpriority=1)
        other.close()
        self._stopping = False
        self._sending = threading.Lock()
        try:
            ready = self._pipe.recv()
        except EOFError as error:
            raise EngineDeadError("its process has ended before it began") from error
        if isinstance(ready, BaseException):
            raise ready
        self.vllm_config, self.kv_cache_config = ready
        self.input_processor = InputProcessor.from_config(self.vllm_config)
        self._thread = threading.Thread(target=self._listen, name="minivllm-engine", daemon=True)
        self._thread.start()

    def submit(self, message: tuple) -> None:
        """Send a message; see ``EngineCoreLoop``. Raises ``ValueError`` if it cannot be pickled."""
        try:
            with self._sending:
                self._pipe.send(message)
        except OSError:
            pass  # the listener has noticed, too
        except Exception as error:
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
        """Thread main: read outputs until the process ends."""
        try:
            while not isinstance(message := self._pipe.recv(), BaseException):
                self._on_outputs(decode(message))
        except (EOFError, OSError):
            self._process.join(1)
            message = EngineDeadError(f"its process has ended: {self._process.exitcode}")
        except Exception as error:  # else requests would wait for a thread that has ended
            message = error
        if not self._stopping:
            self._on_error(message)


def _close(pipe: Connection) -> None:
    """Close a pipe, which ends the process at its other end."""
    pipe.close()


def _read(pipe: Connection, inbox: Inbox) -> None:
    """Empty the pipe also while a step is computed: a full one would hold up its writer."""
    while True:
        try:
            inbox.put(pipe.recv())
        except (EOFError, OSError):  # the parent is gone
            return inbox.put(STOP)
        except Exception as error:  # this process cannot unpickle it
            return inbox.put(error)


def _send(pipe: Connection, outputs: EngineCoreOutputs) -> None:
    """Send outputs. A call's result that cannot be pickled becomes an error of its caller."""
    for place, (number, value) in enumerate(outputs.utility_outputs):
        try:
            pickle.dumps(value)
        except Exception as error:
            refused = ValueError(f"this result cannot be sent to another process: {error}")
            outputs.utility_outputs[place] = (number, refused)
    pipe.send(encode(outputs))


def _run_process(pipe: Connection, args: EngineArgs) -> None:
    """Process main: make the core, then run its loop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its parent decides when it ends

    inbox = Inbox()
    try:
        core, _ = make_core(args)
        core.executor.register_failure_callback(inbox.put)
        freeze_gc_heap()
        threading.Thread(target=_read, args=(pipe, inbox), daemon=True).start()
        pipe.send((core.config, core.kv_cache_config))
        try:
            EngineCoreLoop(core, inbox.receive, partial(_send, pipe)).run()
        finally:
            core.shutdown()
    except (ValueError, OSError, EngineDeadError) as error:
        pipe.send(error)
    except BaseException as error:
        pipe.send(RuntimeError(repr(error)))
        raise
