"""Proxy of disaggregated prefill: each prompt is computed by one server and continued by another.

``python -m minivllm.deploy.disagg_proxy --prefill URL ... --decode URL ...`` answers as a server of
OpenAI's API does. A prompt goes to a prefill server with ``do_remote_decode`` and ``max_tokens`` 1;
what comes back as ``kv_transfer_params`` goes to a decode server with the whole request.
(vLLM has such a proxy among its examples.)
"""

from __future__ import annotations

import argparse
import itertools
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

# fields of a request that are about its answer alone; tools are a part of a chat's prompt
_OF_THE_ANSWER = ("stream", "stream_options", "min_tokens", "n", "logprobs", "top_logprobs",
                  "max_completion_tokens", "response_format", "structured_outputs")  # fmt: skip
_OF_A_CONNECTION = ("host", "content-length", "connection", "accept-encoding")


def make_app(prefill: list[str], decode: list[str], timeout: float = 600.0) -> FastAPI:
    """Make the proxy.

    Args:
        prefill, decode: addresses of servers, which take turns.
        timeout: seconds for the next byte of an answer.
    """
    prefills, decodes = itertools.cycle(prefill), itertools.cycle(decode)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with httpx.AsyncClient(timeout=timeout) as client:
            app.state.client = client
            yield

    app = FastAPI(lifespan=lifespan)

    @app.get("/health")
    async def health() -> Response:
        for url in (*prefill, *decode):
            found = await app.state.client.get(f"{url}/health")
            if found.status_code != 200:
                return Response(status_code=found.status_code)
        return Response()

    @app.get("/v1/models")
    async def models() -> Response:
        found = await app.state.client.get(f"{next(decodes)}/v1/models")
        return Response(found.content, found.status_code, media_type="application/json")

    @app.post("/v1/completions")
    @app.post("/v1/chat/completions")
    async def complete(request: Request) -> Response:
        client = app.state.client
        try:
            body = await request.json()
        except ValueError:
            return _error(400, "the body is not JSON")
        if not isinstance(body, dict):
            return _error(400, "the body is no object")
        path = request.url.path
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _OF_A_CONNECTION}
        headers.setdefault("x-request-id", uuid.uuid4().hex)
        try:
            if has_one_prompt(body):
                asked = body_for_prefill(body)
                first = await client.post(f"{next(prefills)}{path}", json=asked, headers=headers)
                if first.status_code != 200:
                    return _copy(first)
                body["kv_transfer_params"] = first.json().get("kv_transfer_params")
            url = f"{next(decodes)}{path}"
            if not body.get("stream"):
                return _copy(await client.post(url, json=body, headers=headers))
            sent = client.build_request("POST", url, json=body, headers=headers)
            answer = await client.send(sent, stream=True)
        except httpx.HTTPError as error:
            return _error(502, f"a server behind this proxy does not answer: {error!r}")
        media_type = answer.headers.get("content-type")
        return StreamingResponse(_pass_on(answer), answer.status_code, media_type=media_type)

    return app


def has_one_prompt(body: dict[str, Any]) -> bool:
    """True for a chat, one text or one list of ids: the prompt of a transfer."""
    if body.get("use_beam_search"):
        return False
    prompt = body.get("prompt", "")
    return isinstance(prompt, str) or (len(prompt) > 0 and isinstance(prompt[0], int))


def body_for_prefill(body: dict[str, Any]) -> dict[str, Any]:
    """The same request, of which only the prompt is to be computed."""
    kept = {name: value for name, value in body.items() if name not in _OF_THE_ANSWER}
    return kept | {"max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}


async def _pass_on(answer: httpx.Response) -> AsyncIterator[bytes]:
    """Yield a stream's bytes as they come; the decode server hears when the client hangs up."""
    try:
        async for chunk in answer.aiter_raw():
            yield chunk
    finally:
        await answer.aclose()


def _copy(answer: httpx.Response) -> Response:
    return Response(
        answer.content, answer.status_code, media_type=answer.headers.get("content-type")
    )


def _error(status: int, message: str) -> Response:
    error = {"message": message, "type": "proxy_error", "param": None, "code": status}
    return JSONResponse({"error": error}, status)


def main(argv: list[str] | None = None) -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m minivllm.deploy.disagg_proxy")
    parser.add_argument("--prefill", nargs="+", required=True, metavar="URL")
    parser.add_argument("--decode", nargs="+", required=True, metavar="URL")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    args = parser.parse_args(argv)
    app = make_app([u.rstrip("/") for u in args.prefill], [u.rstrip("/") for u in args.decode])
    uvicorn.run(app, host=args.host, port=args.port)


if __name__ == "__main__":
    main()
