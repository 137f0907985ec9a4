"""GenerationResponse: a stream of the engine's outputs for the prompts of one request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from minivllm.engine.async_llm import AsyncLLM
from minivllm.engine.input_processor import EngineInput
from minivllm.engine.output_collector import RequestOutputCollector
from minivllm.entrypoints.openai.streaming.chunk_builder import ChunkBuilder
from minivllm.entrypoints.openai.streaming.chunk_writer import DONE, error_event
from minivllm.entrypoints.openai.streaming.event_stream import EventStreamResponse, body_message
from minivllm.lora.request import LoRARequest


@dataclass
class EngineRequest:
    """The arguments of ``AsyncLLM.add_request`` for one prompt of an HTTP request."""

    request_id: str
    prompt: EngineInput
    params: Any  # SamplingParams, BeamSearchParams or PoolingParams
    priority: int
    lora_request: LoRARequest | None = None
    data_parallel_rank: int | None = None


class GenerationResponse(EventStreamResponse):
    """Events of one or more prompts, sent while the engine's outputs are distributed.

    No task wakes up for an event: each collector calls ``_on_put``, which sends the event at once.
    Only for a slow client a task waits, and the collectors merge the outputs that come meanwhile.

    Args:
        engine: gets the requests after the response has started.
        requests: one for each prompt.
        chunks: makes events of outputs.
    """

    def __init__(self, engine: AsyncLLM, requests: list[EngineRequest], chunks: ChunkBuilder):
        super().__init__()
        self.engine = engine
        self.requests = requests
        self.chunks = chunks
        self._collectors: list[RequestOutputCollector] = []
        self._waiting: asyncio.Task | None = None  # for a slow client

    async def send_events(self, send) -> None:
        self._send = send
        try:
            try:
                await self._send_outputs()
                last = self.chunks.finish()
            except Exception as error:
                last = error_event(error)
                error.__traceback__ = None  # its frames refer to this response
            if self._waiting is not None:
                await self._waiting
            await send(body_message(last + DONE, more=False))
        finally:
            for collector in self._collectors:
                self.engine.release(collector)
            if self._waiting is not None:
                self._waiting.cancel()

    async def _send_outputs(self) -> None:
        """Add the requests to the engine, and wait until all is sent. Raises an error of any."""
        for request in self.requests:
            collector = await self.engine.add_request(
                request.request_id,
                request.prompt,
                request.params,
                priority=request.priority,
                lora_request=request.lora_request,
                data_parallel_rank=request.data_parallel_rank,
            )
            self._collectors.append(collector)
        self._finished = asyncio.get_running_loop().create_future()
        self._num_unfinished = len(self._collectors)
        for collector in self._collectors:
            collector.on_put = self._on_put
        self._take_from(self._collectors)
        await self._finished

    def _on_put(self, collector: RequestOutputCollector) -> None:
        self._take_from([collector])

    def _take_from(self, collectors: list[RequestOutputCollector]) -> None:
        """Send the outputs in these collectors, as long as the client keeps up."""
        try:
            for collector in collectors:
                while self._may_send() and (output := collector.get_nowait()) is not None:
                    self._num_unfinished -= output.finished
                    self._send_now(self.chunks.build(output))
        except Exception as error:  # it ends this response only
            self._end(error)
        if self._num_unfinished == 0:
            self._end(None)

    def _may_send(self) -> bool:
        return self._waiting is None and not self._finished.done()

    def _send_now(self, events: bytes) -> None:
        """Send events now; if the server's ``send`` has to wait, leave the rest to a task."""
        if events:
            rest = _EagerStart(self._send(body_message(events)))
            if not rest.done:
                self._waiting = asyncio.ensure_future(rest.finish())
                self._waiting.add_done_callback(self._go_on)

    def _go_on(self, waiting: asyncio.Task) -> None:
        if not waiting.cancelled():
            self._waiting = None
            if waiting.exception() is not None:
                self._end(waiting.exception())
            self._take_from(self._collectors)

    def _end(self, error: BaseException | None) -> None:
        if self._finished.done():
            return
        if error is None:
            self._finished.set_result(None)
        else:
            self._finished.set_exception(error)


class _EagerStart:
    """An awaitable that runs at once, up to its first wait (an eager task without the task).

    Awaiting it runs the rest. Cancelling that closes the awaitable.
    """

    def __init__(self, awaitable: Awaitable):
        self._steps = awaitable.__await__()
        self._waits_for = None
        try:
            self._waits_for = next(self._steps)
            self.done = False
        except StopIteration:
            self.done = True

    def __await__(self):
        yield self._waits_for
        yield from self._steps

    async def finish(self) -> None:
        """Run the rest."""
        await self
