"""Routes of the endpoints. The ``serving`` modules answer.

(vLLM: vllm/entrypoints/openai/api_server.py and the routers beside it)
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse, RedirectResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import TypeAdapter, ValidationError

from minivllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionRequest,
    ChatCompletionResponse,
)
from minivllm.entrypoints.openai.completion.protocol import CompletionRequest, CompletionResponse
from minivllm.entrypoints.openai.errors import JSON, ErrorResponse, json_only
from minivllm.entrypoints.openai.models.protocol import ModelCard, ModelList
from minivllm.entrypoints.openai.tokenize.protocol import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)
from minivllm.metrics.prometheus import make_registry
from minivllm.metrics.reader import Metric
from minivllm.version import __version__

_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorResponse, "description": text}
    for status, text in (
        (400, "the request is refused"),
        (401, "no key, or a wrong one"),
        (404, "there is no such model"),
        (413, "the body is too large"),
        (500, "the engine has failed"),
        (503, "too many requests wait"),
    )
}


def posted() -> APIRouter:
    """Make a router of endpoints whose bodies are JSON."""
    return APIRouter(dependencies=[Depends(json_only)], responses=_ERRORS)


router = APIRouter()  # of all models
generation = posted()  # of those that generate
_tokens = posted()  # of those with a tokenizer


def validated(kind: Any, body: dict[str, Any]) -> Any:
    """Validate a body that is not an endpoint's own.

    Raises:
        RequestValidationError: as FastAPI raises it.
    """
    try:
        return TypeAdapter(kind).validate_python(body)
    except ValidationError as error:
        places = [one | {"loc": ("body", *one["loc"])} for one in error.errors()]
        raise RequestValidationError(places) from error


def _generation(answer: type, chunk: str) -> dict[int | str, dict[str, Any]]:
    stream = {"text/event-stream": {"schema": {"type": "string"}, "example": f"data: {chunk}"}}
    return {200: {"model": answer, "content": stream}}


@generation.post(
    "/v1/completions",
    responses=_generation(CompletionResponse, '{"object": "text_completion", ...}'),
)
async def create_completion(request: CompletionRequest, raw: Request):
    return await raw.app.state.completion.create_completion(request, raw)


@generation.post(
    "/v1/chat/completions",
    responses=_generation(ChatCompletionResponse, '{"object": "chat.completion.chunk", ...}'),
)
async def create_chat_completion(request: ChatCompletionRequest, raw: Request):
    return await raw.app.state.chat.create_chat_completion(request, raw)


@generation.post(
    "/invocations",
    responses=_generation(CompletionResponse, '{"object": "text_completion", ...}'),
)
async def invocations(body: dict[str, Any], raw: Request):
    """Completions and chat under SageMaker's name; a body with messages is a chat."""
    if "messages" in body:
        return await create_chat_completion(validated(ChatCompletionRequest, body), raw)
    return await create_completion(validated(CompletionRequest, body), raw)


@router.get("/v1/models", response_model=ModelList, responses={401: _ERRORS[401]})
async def show_models(raw: Request):
    return JSON(raw.app.state.models.show_models().model_dump())


@router.get("/v1/models/", include_in_schema=False)
async def redirect_to_models(raw: Request):
    return RedirectResponse(raw.url.replace(path=raw.url.path.rstrip("/")))


@router.get("/v1/models/{name:path}", response_model=ModelCard, responses=_ERRORS)
async def show_model(name: str, raw: Request):
    return JSON(raw.app.state.models.show_model(name).model_dump())


@_tokens.post("/tokenize", response_model=TokenizeResponse)
async def tokenize(request: TokenizeRequest, raw: Request):
    return JSON((await raw.app.state.tokenization.tokenize(request)).model_dump())


@_tokens.post("/detokenize", response_model=DetokenizeResponse)
async def detokenize(request: DetokenizeRequest, raw: Request):
    return JSON(raw.app.state.tokenization.detokenize(request).model_dump())


router.include_router(_tokens)


@router.get("/health", responses={503: {"description": "the engine has stopped"}})
async def health(raw: Request) -> Response:
    """Status 200 while the engine lives, else 503; without a body."""
    dead = raw.app.state.served.engine.errored
    return Response(status_code=HTTPStatus.SERVICE_UNAVAILABLE if dead else HTTPStatus.OK)


@router.get("/ping", responses={503: {"description": "the engine has stopped"}})
@router.post("/ping", responses={503: {"description": "the engine has stopped"}})
async def ping(raw: Request) -> Response:
    """Health under SageMaker's name."""
    return await health(raw)


@router.get("/version")
async def show_version():
    return JSON({"version": __version__})


@router.get("/load")
async def show_load(raw: Request):
    """Number of generation requests in progress; 0 without --enable-server-load-tracking."""
    return JSON({"server_load": raw.app.state.server_load})


def add_metrics(app: FastAPI, of_the_engine: bool) -> None:
    """Add GET /metrics, also with a slash at its end: Prometheus is often configured so.

    The endpoint must not refer to the engine: FastAPI keeps every endpoint until the process ends.

    Args:
        app: the application.
        of_the_engine: show the engine's metrics, too, not only the process's.
    """
    last: list[Metric] = []
    registry = make_registry(lambda: last)

    @app.get("/metrics", response_class=PlainTextResponse)
    @app.get("/metrics/", include_in_schema=False)
    async def metrics(raw: Request) -> Response:
        served = raw.app.state.served
        if of_the_engine and not served.engine.errored:
            last[:] = await served.engine.get_metrics(served.models.model_name())
            last.append(served.rejections())
        return Response(generate_latest(registry), headers={"content-type": CONTENT_TYPE_LATEST})


def add_tokenizer_info(app: FastAPI) -> None:
    """Add GET /tokenizer_info."""

    @app.get("/tokenizer_info")
    async def tokenizer_info(raw: Request):
        return JSON(raw.app.state.tokenization.tokenizer_info())
