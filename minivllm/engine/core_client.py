"""EngineCoreClient: how the asynchronous face reaches an engine that runs by itself.

(vLLM: vllm/v1/engine/core_client.py)
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from minivllm.engine.core_loop import STOP, Batch, EngineCoreLoop


class ThreadClient:
    """The engine in a thread of this process: in reach, but under the same interpreter lock.

    Args:
        core: the engine.
        on_batch: called from that thread with what every turn has to say.
        on_death: called from that thread with the error that has escaped a step.
    """

    def __init__(
        self,
        core,
        on_batch: Callable[[Batch], None],
        on_death: Callable[[BaseException], None],
    ):
        self._inbox: queue.SimpleQueue[tuple] = queue.SimpleQueue()
        self._on_death = on_death
        self._loop = EngineCoreLoop(core, self._receive, on_batch)
        self._thread = threading.Thread(target=self._run, name="minivllm-engine", daemon=True)
        self._thread.start()

    def submit(self, message: tuple) -> None:
        """Send a message; see ``EngineCoreLoop``."""
        self._inbox.put(message)

    def shutdown(self, timeout: float = 10.0) -> None:
        """End the thread after the step that it is in. Again does nothing."""
        self._inbox.put(STOP)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def _receive(self, wait: bool) -> list[tuple]:
        messages = [self._inbox.get()] if wait else []
        while not self._inbox.empty():
            messages.append(self._inbox.get())
        return messages

    def _run(self) -> None:
        try:
            self._loop.run()
        except BaseException as error:
            self._on_death(error)
