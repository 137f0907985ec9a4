"""OutputHandler: what the engine says after a step comes to those who wait for it.

(vLLM: ``output_handler`` in vllm/v1/engine/async_llm.py)
"""

from __future__ import annotations

import asyncio
import itertools
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
        self.collectors: dict[str, RequestOutputCollector] = {}  # by request id
        self.num_running = self.num_waiting = 0  # requests, as the engine said last
        self.dead: EngineDeadError | None = None  # why nothing comes any more
        self.on_death = lambda: None  # called once in the event loop, if the engine stops
        self.follower: Callable[[list[Record]], None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # of those who wait
        self._calls: dict[int, asyncio.Future] = {}
        self._numbers = itertools.count()

    def add_request(self, request_id: str, delta: bool) -> RequestOutputCollector:
        """Where the outputs of a request will come. Raises ``EngineDeadError`` if none will."""
        self._begin_to_wait()
        collector = self.collectors[request_id] = RequestOutputCollector(delta)
        return collector

    def add_call(self) -> tuple[int, asyncio.Future]:
        """A number for a call of the engine, and what its result will be in. Raises likewise."""
        self._begin_to_wait()
        number, future = next(self._numbers), asyncio.get_running_loop().create_future()
        self._calls[number] = future
        return number, future

    def _begin_to_wait(self) -> None:
        self.check_health()
        self._loop = asyncio.get_running_loop()

    def check_health(self) -> None:
        """Raise ``EngineDeadError`` if the engine has stopped."""
        if self.dead is not None:
            raise self.dead

    def on_batch(self, batch: Batch) -> None:
        """One wake-up of the event loop a turn. Where that has ended, nobody waits."""
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._deliver, batch)

    def on_error(self, error: BaseException) -> None:
        """The engine has stopped."""
        logger.error("the engine has stopped: %r", error, exc_info=error)
        if self._loop is None or self._loop.is_closed():
            self.dead = EngineDeadError(error)
        else:
            self._loop.call_soon_threadsafe(self.die, EngineDeadError(error))

    def _deliver(self, batch: Batch) -> None:
        self.num_running, self.num_waiting = batch.num_running, batch.num_waiting
        if self.follower is not None:
            self.follower(batch.records)
        for output in batch.outputs:
            if output.request_id in self.collectors:
                self.collectors[output.request_id].put(output)
        for request_id, error in batch.refused:
            if request_id in self.collectors:
                self.collectors.pop(request_id).put(error)
        for number, value in batch.results:
            future = self._calls.pop(number)
            if not future.done():
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
