"""Errors as OpenAI's clients read them: ``{"error": {message, type, param, code}}``.

(vLLM: vllm/entrypoints/serve/exception_handling/error_response.py)
"""

from __future__ import annotations

import json
import sys
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exception_handlers import http_exception_handler
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response

from minivllm.executor.exceptions import EngineDeadError
from minivllm.logger import init_logger
from minivllm.multimodal.errors import MediaError
from minivllm.scheduling.livelock import LivelockError
from minivllm.utils.validation import InvalidParameter

logger = init_logger(__name__)

# The parameters that vLLM names in ``param``; for others it is null.
_NAMED = {
    "allowed_token_ids", "cache_salt", "dimensions", "input_tokens", "logit_bias", "logprobs",
    "max_tokens", "model", "prompt", "prompt_logprobs", "response_format", "stop_token_ids",
    "stream_options", "structured_outputs", "suffix", "task", "temperature", "tool_choice", "tools",
    "top_logprobs", "top_p", "truncate_prompt_tokens",
}  # fmt: skip
_KINDS = {
    HTTPStatus.BAD_REQUEST: "BadRequestError",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "Bad Request",  # as a body that is too large
    HTTPStatus.UNPROCESSABLE_ENTITY: "UnprocessableEntityError",
}
_OF_STARLETTE = (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED)


class ErrorInfo(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: int


class ErrorResponse(BaseModel):
    error: ErrorInfo


class RequestError(Exception):
    """A request that is refused; not a ``ValueError``, so that validators let it pass."""

    def __init__(
        self,
        message: str,
        param: str | None = None,
        status: HTTPStatus = HTTPStatus.BAD_REQUEST,
        kind: str = "BadRequestError",
    ):
        super().__init__(message)
        self.info = ErrorInfo(message=message, type=kind, param=param, code=status.value)

    @classmethod
    def of(cls, error: Exception) -> RequestError:
        """The error that a client is shown: the message if its request was bad, else no detail."""
        if isinstance(error, RequestError):
            return error
        if isinstance(error, ValueError) and not isinstance(error, LivelockError):
            name = getattr(error, "parameter", "").rsplit(" ", 1)[-1]
            status = error.status if isinstance(error, MediaError) else HTTPStatus.BAD_REQUEST
            return cls(str(error), name if name in _NAMED else None, status, _KINDS[status])
        if isinstance(error, EngineDeadError):
            message = "the engine has stopped"
        else:
            logger.error("a request has failed: %r", error, exc_info=error)
            message = "the server has failed at this request; its log says more"
        return cls(message, status=HTTPStatus.INTERNAL_SERVER_ERROR, kind="InternalServerError")

    def body(self) -> dict:
        return {"error": self.info.model_dump()}


class JSON(JSONResponse):
    """A JSON body in ASCII: half of a surrogate pair, too, can be written so."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def error_response(error: Exception) -> JSON:
    """An error as a JSON response."""
    refused = RequestError.of(error)
    return JSON(refused.body(), refused.info.code)


def _describe(error: RequestValidationError) -> RequestError:
    """Error of a body's validation: the first field that is named, and all sentences."""
    lines = []
    param = None
    for problem in error.errors():
        if isinstance(problem, str):  # our own: see ``json_only``
            lines.append(problem)
            continue
        # The branch of a union, a class, is no field.
        fields = [str(part) for part in problem["loc"] if not str(part)[:1].isupper()]
        lines.append(f"{'.'.join(fields)}: {problem['msg']}")
        param = param or ".".join(fields[:2])
    return RequestError("; ".join(lines), param, kind="Bad Request")


def _unreadable(error: HTTPException) -> RequestError:
    """A body that Python's parser of JSON gave up on, or that a middleware refused."""
    cause = error.__cause__
    if isinstance(cause, RequestError):
        return cause
    reason = error.detail
    if isinstance(cause, RecursionError):
        reason = "its lists and objects are nested too deeply"
    elif isinstance(cause, UnicodeDecodeError):
        reason = "it is not UTF-8"
    elif isinstance(cause, ValueError):
        reason = f"a number may have {sys.get_int_max_str_digits():,} digits, and one has more"
    status = HTTPStatus(error.status_code)
    return RequestError(f"body: {reason}", "body", status=status, kind="Bad Request")


async def json_only(request: Request) -> None:
    """A dependency: another media type than JSON is refused before the body is read as such."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestValidationError([f"Content-Type must be 'application/json', got {kind!r}."])


def add_handlers(app: FastAPI) -> None:
    """Every error that a handler lets through becomes such a body.

    A path or method that is not there has Starlette's own body, as in vLLM.
    """

    async def refuse(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.status_code in _OF_STARLETTE:
            return await http_exception_handler(request, error)
        if isinstance(error, RequestValidationError):
            error = _describe(error)
        elif isinstance(error, HTTPException):
            error = _unreadable(error)
        return error_response(error)

    for kind in (RequestValidationError, HTTPException, RequestError, InvalidParameter, ValueError,
                 EngineDeadError, Exception):  # fmt: skip
        app.add_exception_handler(kind, refuse)
