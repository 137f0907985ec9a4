"""OutputHandler: what the engine says after a step comes to those who wait for it.

(vLLM: ``output_handler`` in vllm/v1/engine/async_llm.py)
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from minivllm.engine.core_loop import Batch
from minivllm.engine.exceptions import EngineDeadError
from minivllm.engine.output_collector import RequestOutputCollector
from minivllm.logger import init_logger
from minivllm.records import Record

logger = init_logger(__name__)


class OutputHandler:
    """Who waits, and for what: outputs of requests, results of calls, the trace's records.

    The engine's thread calls ``on_batch`` and ``on_error``; all else belongs to the event loop.
    """

    def __init__(self):
        # By request id, until the engine has said its last word; the reader may have gone before.
        self.collectors: dict[str, RequestOutputCollector] = {}
        self.num_running = self.num_waiting = 0  # requests, as the engine said last
        self.dead: EngineDeadError | None = None  # why nothing comes any more
        self.on_death = lambda: None  # called once in the event loop, if the engine stops
        self.follower: Callable[[list[Record]], None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # of those who wait
        self._batches: deque[Batch] = deque()  # on their way to it
        self._calls: dict[int, asyncio.Future] = {}
        self._numbers = itertools.count()

    def add_request(self, request_id: str, delta: bool) -> RequestOutputCollector:
        """Where the outputs of a request will come."""
        collector = self.collectors[request_id] = RequestOutputCollector(request_id, delta)
        return collector

    def add_call(self) -> tuple[int, asyncio.Future]:
        """A number for a call of the engine, and what its result will be in."""
        self.begin_to_wait()
        number, future = next(self._numbers), asyncio.get_running_loop().create_future()
        self._calls[number] = future
        return number, future

    def forget_call(self, number: int) -> None:
        """Of a call that has not been sent."""
        del self._calls[number]

    def begin_to_wait(self) -> None:
        """Somebody is about to wait in this event loop. Raises ``EngineDeadError`` if in vain."""
        self.check_health()
        self._loop = asyncio.get_running_loop()
        self._deliver()  # what an event loop that has ended did not hear

    def check_health(self) -> None:
        """Raise ``EngineDeadError`` if the engine has stopped."""
        if self.dead is not None:
            raise self.dead

    def on_batch(self, batch: Batch) -> None:
        """One wake-up of the event loop a turn. Where that has ended, the next one hears of it."""
        if self._loop is not None:
            self._batches.append(batch)
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._deliver)

    def on_error(self, error: BaseException) -> None:
        """The engine has stopped."""
        logger.error("the engine has stopped: %r", error, exc_info=error)
        if self._loop is None or self._loop.is_closed():
            self.dead = EngineDeadError(error)
        else:
            self._loop.call_soon_threadsafe(self.die, EngineDeadError(error))

    def _deliver(self) -> None:
        while self._batches:
            self._deliver_batch(self._batches.popleft())

    def _deliver_batch(self, batch: Batch) -> None:
        self.num_running, self.num_waiting = batch.num_running, batch.num_waiting
        if self.follower is not None:
            self.follower(batch.records)
        for output in batch.outputs:
            collector = self.collectors.get(output.request_id)
            if collector is not None:
                collector.put(output)
                if output.finished:
                    del self.collectors[output.request_id]
        for request_id, error in batch.refused:
            if request_id in self.collectors:
                self.collectors.pop(request_id).put(error)
        for number, value in batch.results:
            future = self._calls.pop(number)
            if not (future.done() or future.get_loop().is_closed()):
                if isinstance(value, Exception):
                    future.set_exception(value)
                else:
                    future.set_result(value)

    def die(self, error: EngineDeadError) -> None:
        """Tell all who wait. Again does nothing."""
        if self.dead is not None:
            return
        self.dead = error
        for collector in self.collectors.values():
            collector.put(error)
        self.collectors.clear()
        for future in self._calls.values():
            if not future.done():
                future.set_exception(error)
        self._calls.clear()
        self.on_death()
