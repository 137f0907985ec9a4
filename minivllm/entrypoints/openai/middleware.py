"""Middleware of all endpoints: API keys, request ids, load, limits of bodies and of requests.

Pure ASGI. None may delay the start of a response: a stream's events bypass the middleware
(``KeepSend``), and the server must have the start before them.
(vLLM: vllm/entrypoints/launchers/utils/server_utils.py)
"""

from __future__ import annotations

import hashlib
import secrets
import uuid
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from minivllm.entrypoints.openai.errors import JSON, RequestError, error_response
from minivllm.entrypoints.openai.served_model import ADMITTED, ServedModel
from minivllm.entrypoints.openai.streaming.event_stream import SERVERS_SEND

LARGEST_BODY = 32 * 2**20  # bytes
# vLLM's prefixes, those that do the same, and the glass server's endpoints; the page at /glass
# alone shows nothing.
_POOLING = ("/pooling", "/classify", "/score", "/rerank")
_GUARDED = ("/v1", "/v2", "/inference", "/invocations", "/cohere", "/glass/", *_POOLING)
_COUNTED = ("/v1/completions", "/v1/chat/completions", "/v1/embeddings", *_POOLING)


class KeepSend:
    """Middleware that keeps the server's own ``send`` in the scope, for events of streams."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[SERVERS_SEND] = send
        try:
            await self.app(scope, receive, send)
        finally:
            del scope[SERVERS_SEND]  # it refers to the scope: a reference cycle


class AuthenticationMiddleware:
    """API keys: requests under these prefixes need ``Authorization: Bearer KEY``.

    All digests are compared, each in constant time, so the time of a refusal tells nothing about
    the keys.
    """

    def __init__(self, app: ASGIApp, keys: list[str], root_path: str = ""):
        self.app = app
        self.root_path = root_path
        self.digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] != "OPTIONS":
            path = scope["path"]
            if path.startswith(self.root_path + "/"):  # only whole parts of a path, as in routes
                path = path.removeprefix(self.root_path)
            if path.startswith(_GUARDED) and not self._has_key(Headers(scope=scope)):
                answer = JSON({"error": "Unauthorized"}, HTTPStatus.UNAUTHORIZED)
                return await answer(scope, receive, send)
        return await self.app(scope, receive, send)

    def _has_key(self, headers: Headers) -> bool:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        digest = hashlib.sha256(key.encode()).digest()
        found = [secrets.compare_digest(digest, known) for known in self.digests]
        return scheme.lower() == "bearer" and any(found)


class RequestIdMiddleware:
    """Header ``X-Request-Id`` of each response: the caller's id, or a new one."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        request_id = Headers(scope=scope).get("x-request-id") or uuid.uuid4().hex

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                header = (b"x-request-id", request_id.encode("latin-1"))
                message = {**message, "headers": [*message.get("headers", ()), header]}
            await send(message)

        return await self.app(scope, receive, send_with_id)


class LoadMiddleware:
    """Counter of requests to the model in progress, for ``/load``."""

    def __init__(self, app: ASGIApp, state):
        self.app = app
        self.state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].endswith(_COUNTED):
            return await self.app(scope, receive, send)
        self.state.server_load += 1
        try:
            return await self.app(scope, receive, send)
        finally:
            self.state.server_load -= 1


class AdmissionMiddleware:
    """Release of the room that ``ServedModel.admit`` gave a request, however the request ends."""

    def __init__(self, app: ASGIApp, served: ServedModel):
        self.app = app
        self.served = served

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            return await self.app(scope, receive, send)
        finally:
            self.served.num_admitted -= scope.get(ADMITTED, 0)


class BodyLimitMiddleware:
    """Limit of bodies: one beyond ``LARGEST_BODY`` is refused, if possible before it is read."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        announced = Headers(scope=scope).get("content-length", "0")
        if announced.isdecimal() and int(announced) > LARGEST_BODY:
            return await error_response(_too_large())(scope, receive, send)
        seen = 0

        async def receive_counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > LARGEST_BODY:
                raise _too_large()
            return message

        return await self.app(scope, receive_counted, send)


def _too_large() -> RequestError:
    return RequestError(
        f"a body may have {LARGEST_BODY} bytes",
        status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        kind="Bad Request",
    )
