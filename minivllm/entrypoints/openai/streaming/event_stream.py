"""EventStreamResponse: a response of server-sent events that ends if its client disconnects.

(notebook 21b)
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator

from starlette.responses import Response

SERVERS_SEND = "minivllm.send"  # key of a scope: the server's own ``send``; see ``KeepSend``


class EventStreamResponse(Response, ABC):
    """Base of responses that are sent event by event.

    If the client disconnects, the response ends at once; Starlette's own stream often notices that
    at the next event only. Middleware sees the start of the response. The events go to the server
    directly, since each layer of middleware would cost time for every event.
    """

    media_type = "text/event-stream"

    def __init__(self):
        self.status_code = 200
        self.background = None
        self.init_headers()

    async def __call__(self, scope, receive, send) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        sending = asyncio.ensure_future(self.send_events(scope.get(SERVERS_SEND, send)))
        await until_done_or_gone(sending, receive)

    @abstractmethod
    async def send_events(self, send) -> None:
        """Send the body. ``send`` is the server's."""


class IteratorResponse(EventStreamResponse):
    """Response with the events of a generator, which is closed at the end.

    Args:
        events: a generator of events in bytes.
    """

    def __init__(self, events: AsyncGenerator[bytes, None]):
        super().__init__()
        self.events = events

    async def send_events(self, send) -> None:
        try:
            async for event in self.events:
                await send(body_message(event))
        finally:
            await self.events.aclose()
        await send(body_message(b"", more=False))


def body_message(events: bytes, more: bool = True) -> dict:
    return {"type": "http.response.body", "body": events, "more_body": more}


async def until_done_or_gone(task: asyncio.Future, receive):
    """Wait for a task's result; if the client disconnects before, cancel it and return None."""
    gone = asyncio.ensure_future(_disconnect(receive))
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


async def _disconnect(receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
