"""Server-sent events: a stream's chunks as bytes, of which only what changes is made anew.

A model per chunk would cost more than all else that the server does for a token, so the parts that
stay are made once for a stream. ``tests/test_21_streams.py`` holds them to the whole answers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator

from starlette.responses import Response

from minivllm.entrypoints.openai.errors import RequestError
from minivllm.outputs import RequestOutput

DONE = b"data: [DONE]\n\n"
_dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class ChunkWriter:
    """Writes the events of one stream.

    Args:
        head: the keys that every event begins with: id, object, created, model.
        fingerprint: in the last event before ``[DONE]``.
        include_usage: there is a last event with the usage, without choices.
    """

    def __init__(self, head: dict, fingerprint: str, include_usage: bool):
        self._head = f'data: {_dumps(head)[:-1]},"choices":['
        self._fingerprint = f',"system_fingerprint":{_dumps(fingerprint)}'
        self._include_usage = include_usage

    def event(self, choice: str, finished: bool = False, more: dict | None = None) -> bytes:
        """One event.

        Args:
            choice: its only choice, as JSON.
            finished: it ends its choice.
            more: keys beside the choices.
        """
        tail = "]"
        if finished and not self._include_usage:
            tail += self._fingerprint
        for name, value in (more or {}).items():
            tail += f',"{name}":{_dumps(value)}'
        return f"{self._head}{choice}{tail}}}\n\n".encode()

    def usage(self, usage: dict) -> bytes:
        """The last event of a stream that ``include_usage`` was asked of."""
        return f'{self._head}]{self._fingerprint},"usage":{_dumps(usage)}}}\n\n'.encode()


def to_json(value) -> str:
    """A value as it stands in an event."""
    return "null" if value is None else _dumps(value)


def error_event(error: Exception) -> bytes:
    """An error that came when the stream had begun."""
    return f"data: {_dumps(RequestError.of(error).body())}\n\n".encode()


class EventStream(Response):
    """An answer that is sent event by event.

    A client that hangs up closes the generator behind it at once, whatever it waits for.
    Starlette's own stream would often notice with the next event only.

    Args:
        events: the events, each as bytes.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None]):
        self.events = events
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-cache"})

    async def __call__(self, scope, receive, send) -> None:
        sending = asyncio.ensure_future(self._send(send))
        await until_done_or_gone(sending, receive)

    async def _send(self, send) -> None:
        start = {
            "type": "http.response.start", "status": self.status_code, "headers": self.raw_headers,
        }  # fmt: skip
        await send(start)
        body = {"type": "http.response.body", "more_body": True}
        try:
            async for event in self.events:
                await send({**body, "body": event})
        finally:
            await self.events.aclose()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def until_done_or_gone(task: asyncio.Future, receive):
    """The task's result; None if the client has hung up before, and then the task is cancelled."""
    gone = asyncio.ensure_future(_hang_up(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    return None


async def _hang_up(receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def merge(
    streams: list[AsyncGenerator[RequestOutput, None]],
) -> AsyncGenerator[RequestOutput, None]:
    """What several streams have, as it comes."""
    return streams[0] if len(streams) == 1 else _merge(streams)


async def _merge(
    streams: list[AsyncGenerator[RequestOutput, None]],
) -> AsyncGenerator[RequestOutput, None]:
    waiting = {asyncio.ensure_future(anext(stream)): i for i, stream in enumerate(streams)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=waiting.__getitem__):
                index = waiting.pop(task)
                try:
                    output = task.result()
                except StopAsyncIteration:
                    continue
                waiting[asyncio.ensure_future(anext(streams[index]))] = index
                yield output
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for stream in streams:
            await stream.aclose()


async def last_of(stream: AsyncGenerator) -> RequestOutput:
    """A request's whole output."""
    try:
        async for output in stream:
            last = output
        return last
    finally:
        await stream.aclose()


async def beams(
    outputs: AsyncGenerator[RequestOutput, None], include_stop: bool
) -> AsyncGenerator[RequestOutput, None]:
    """Beams as vLLM's server shows them: each with a stop_reason, the token that completed it.

    Among its tokens that one is only if ``include_stop``.
    """
    try:
        async for output in outputs:
            if not output.finished:
                continue  # a beam's text may yet become another's: there is nothing to stream
            for beam in output.outputs:
                if beam.finish_reason == "stop":
                    beam.stop_reason = beam.token_ids[-1]
                    if not include_stop:
                        beam.token_ids = beam.token_ids[:-1]
            yield output
    finally:
        await outputs.aclose()


async def every(
    num_tokens: int, outputs: AsyncGenerator[RequestOutput, None]
) -> AsyncGenerator[RequestOutput, None]:
    """Fewer and larger outputs of a stream, but for the first and the last."""
    waiting, begun = None, False
    try:
        async for output in outputs:
            if waiting is None:
                waiting = output
            else:
                waiting.add(output)
            enough = any(len(choice.token_ids) >= num_tokens for choice in waiting.outputs)
            if enough or waiting.finished or not begun:
                yield waiting
                waiting, begun = None, True
    finally:
        await outputs.aclose()
