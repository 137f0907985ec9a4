"""EventStreamResponse: server-sent events, and clients that hang up."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator

from starlette.responses import Response

SERVERS_SEND = "minivllm.send"  # key of a scope: the server's own ``send``; see ``KeepSend``


class EventStreamResponse(Response, ABC):
    """An answer that is sent event by event.

    A client that hangs up ends it at once, whatever it waits for. Starlette's own stream would
    often notice with the next event only. Middleware sees how the answer begins; its events go to
    the server itself, since each layer between would cost every one of them.
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
        """Send the answer's body, by a server's ``send``."""


class IteratorResponse(EventStreamResponse):
    """Events as a generator makes them; it is closed in the end.

    Args:
        events: the events, each as bytes.
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
