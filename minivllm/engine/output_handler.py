"""OutputHandler: brings the core's outputs to the coroutines that wait for them.

(vLLM: ``output_handler`` in vllm/v1/engine/async_llm.py)
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from minivllm.engine.core_loop import STOP
from minivllm.engine.core_outputs import EngineCoreOutputs
from minivllm.engine.output_processor import OutputProcessor
from minivllm.executor.exceptions import EngineDeadError
from minivllm.logger import init_logger
from minivllm.metrics.families import EngineMetrics
from minivllm.metrics.loggers import LoggingStatLogger
from minivllm.trace.records import Record

logger = init_logger(__name__)


class OutputHandler:
    """Receiver of the core's outputs: text and counts, results of calls, the trace's records.

    The core's thread calls ``on_outputs`` and ``on_error``; all else belongs to the event loop. It
    holds no ``AsyncLLM``: that would live as long as the core's thread.
    """

    # Set by AsyncLLM when the core is made, before its first message.
    submit: Callable[[tuple], None]  # sends a message to the core
    output_processor: OutputProcessor  # makes text
    metrics: list[EngineMetrics]  # count every step, of each engine
    stat_loggers: Sequence[LoggingStatLogger] = ()  # log them, if given

    def __init__(self):
        self.dead: EngineDeadError | None = None  # why the engine has stopped
        self.on_death = lambda: None  # called once in the event loop, if the engine stops
        self.follower: Callable[[list[Record]], None] | None = None
        self.stopping: list[str] = []  # ids of stop strings' requests: the core has not ended them
        self._loop: asyncio.AbstractEventLoop | None = None  # of the coroutines that wait
        self._outputs: deque[EngineCoreOutputs] = deque()  # on their way to it
        self._calls: dict[int, asyncio.Future] = {}
        self._numbers = itertools.count()

    def add_call(self) -> tuple[int, asyncio.Future]:
        """Return a number for a call of the core, and the future of its result."""
        self.bind_to_loop()
        number = next(self._numbers)
        future = asyncio.get_running_loop().create_future()
        self._calls[number] = future
        return number, future

    def forget_call(self, number: int) -> None:
        """Drop the future of a call that could not be sent."""
        del self._calls[number]

    def bind_to_loop(self) -> None:
        """Bind to the running event loop. Raises ``EngineDeadError`` if the engine has stopped."""
        self._loop = asyncio.get_running_loop()
        self._deliver()  # outputs that came while the last event loop was closed
        self.check_health()

    def check_health(self) -> None:
        """Raise ``EngineDeadError`` if the engine has stopped."""
        if self.dead is not None:
            raise self.dead

    def on_outputs(self, outputs: EngineCoreOutputs) -> None:
        """Hand outputs to the event loop, in one call; they are kept if the loop is closed."""
        if self._loop is not None:
            self._outputs.append(outputs)
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._deliver)

    def on_error(self, error: BaseException) -> None:
        """Report that the engine has stopped."""
        logger.error("the engine has stopped: %r", error, exc_info=error)
        if self._loop is None or self._loop.is_closed():
            self.dead = EngineDeadError(error)
        else:
            self._loop.call_soon_threadsafe(self.die, EngineDeadError(error))

    def _deliver(self) -> None:
        while self._outputs and self.dead is None:
            outputs = self._outputs.popleft()
            if self.follower is not None:
                self.follower(outputs.records)
            try:
                self._process(outputs)
            except Exception as error:  # else its requests would wait for ever
                logger.error("the engine's outputs cannot be read: %r", error, exc_info=error)
                self.submit(STOP)
                return self.die(EngineDeadError(error))
            for number, value in outputs.utility_outputs:
                self._end_call(number, value)

    def _process(self, outputs: EngineCoreOutputs) -> None:
        """Put the outputs of a turn into their requests' queues, and count."""
        processor = self.output_processor
        stats = outputs.scheduler_stats
        metrics = self.metrics[outputs.engine_index]
        assert stats is not None, "the loop has set it"
        # 1. Requests that have ended without a token: stopped, aborted, refused.
        for request_id in outputs.stopped_req_ids:
            self.stopping.remove(request_id)
        for request_id in outputs.aborted_req_ids:
            if (state := processor.request_states.get(request_id)) is not None:
                (last,) = processor.abort_requests([request_id])
                assert state.queue is not None
                state.queue.put(last)
        for request_id, error in outputs.refused:
            processor.propagate_error(error, [request_id])
        if outputs.timestamp is None:
            metrics.scheduler = stats
            return
        # 2. Text, and to the core which sequences end with it.
        processed = processor.process_outputs(outputs)
        if processed.stopped:
            self.stopping += [request_id for request_id, _ in processed.stopped]
            self.submit(("stop_sequences", processed.stopped))
        # 3. Count.
        metrics.record(stats, processed.iteration_stats)
        if self.stat_loggers:
            self.stat_loggers[outputs.engine_index].record()

    def _end_call(self, number: int, value) -> None:
        future = self._calls.pop(number)
        if not (future.done() or future.get_loop().is_closed()):
            if isinstance(value, Exception):
                future.set_exception(value)
            else:
                future.set_result(value)

    def die(self, error: EngineDeadError) -> None:
        """Give an error to all that wait. A second call does nothing."""
        if self.dead is not None:
            return
        self.dead = error
        self.output_processor.propagate_error(error, list(self.output_processor.request_states))
        for future in self._calls.values():
            if not future.done():
                future.set_exception(error)
        self._calls.clear()
        self.on_death()
