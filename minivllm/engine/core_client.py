"""CoreClient: connects ``AsyncLLM`` to the loop that runs its engine core.

In a thread of this process (ThreadClient) the core is in reach, but under the same interpreter
lock; to a process of its own (``process_client``) only messages cross. There may also be several
of these (``replicas``). (vLLM: vllm/v1/engine/core_client.py)
"""

from __future__ import annotations

import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

from minivllm.config import VllmConfig
from minivllm.engine.arg_utils import EngineArgs
from minivllm.engine.core import EngineCore
from minivllm.engine.core_loop import STOP, EngineCoreLoop
from minivllm.engine.core_outputs import EngineCoreOutputs
from minivllm.engine.input_processor import InputProcessor
from minivllm.engine.pipeline import core_class
from minivllm.kv.kv_cache_config import KVCacheConfig
from minivllm.request import Request

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


class CoreClient(ABC):
    """Connection to an engine core that runs by itself. Its constructor starts the core.

    Args:
        args: the engine's arguments.
        on_outputs: called from a thread with the outputs of every turn of the core's loop.
        on_error: called from a thread with the error that has ended the loop.
    """

    engine_core: EngineCore | None = None  # if it is in reach
    # set by ``wait_until_ready``
    vllm_config: VllmConfig
    kv_cache_config: KVCacheConfig

    @abstractmethod
    def __init__(self, args: EngineArgs, on_outputs: OnOutputs, on_error: OnError): ...

    @abstractmethod
    def wait_until_ready(self) -> None:
        """Wait until the core is made.

        Raises:
            ValueError, FileNotFoundError: as raised there.
        """

    @abstractmethod
    def get_input_processor(self) -> InputProcessor:
        """The input processor to use: with a core in reach its own, for its compiled grammars."""

    @abstractmethod
    def submit(self, message: tuple) -> None:
        """Send a message without waiting for the core; see ``EngineCoreLoop``.

        Raises:
            ValueError: if it cannot be sent.
        """

    def add(self, request: Request, data_parallel_rank: int | None = None) -> None:
        """Send a new request, to an engine of this number if there are several."""
        self.submit(("add", request))

    @abstractmethod
    def shutdown(self, timeout: float = 10.0) -> None:
        """End the core after its current step. A second call does nothing."""


class ThreadClient(CoreClient):
    """An engine core in a thread of this process, which makes it, too.

    Were it made elsewhere, that thread would keep OpenMP threads of its own from loading the model.
    Where there are more of these than processors, all of them sleep after each operation instead
    of waiting for the next one: a step then takes a quarter more time.
    """

    def __init__(self, args: EngineArgs, on_outputs: OnOutputs, on_error: OnError):
        self._inbox = Inbox()
        self._made = Future[tuple[EngineCore, InputProcessor]]()
        self._thread = threading.Thread(
            target=_run_thread, args=(args, self._made, self._inbox, on_outputs, on_error),
            name="minivllm-engine", daemon=True,
        )  # fmt: skip
        self._thread.start()

    def wait_until_ready(self) -> None:
        try:
            core, self._input_processor = self._made.result()
        except BaseException:  # also Ctrl-C, which only this thread hears
            self.shutdown()
            raise
        self.engine_core = core
        self.vllm_config = core.config
        self.kv_cache_config = core.kv_cache_config

    def get_input_processor(self) -> InputProcessor:
        return self._input_processor

    def submit(self, message: tuple) -> None:
        self._inbox.put(message)

    def shutdown(self, timeout: float = 10.0) -> None:
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
