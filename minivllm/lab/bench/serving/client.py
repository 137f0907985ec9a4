"""The client: sends a request, reads its stream of events or its vector, notes when each came.

(vLLM: vllm/benchmarks/lib/endpoint_request_func.py)
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import httpx

from minivllm.lab.bench.serving.datasets import SampleRequest
from minivllm.lab.bench.serving.metrics import RequestFuncOutput

ENDPOINTS = {
    "openai": "/v1/completions",
    "vllm": "/v1/completions",
    "openai-chat": "/v1/chat/completions",
    "openai-embeddings": "/v1/embeddings",
}
_SILENCE = 600.0  # seconds without a byte after which a request counts as failed
_LONGEST_ERROR = 300  # characters of a server's answer that an error shows


@dataclass(frozen=True)
class ServedModel:
    """A model as its server shows it."""

    name: str
    root: str | None  # what was loaded; a directory, if it lies where the client runs, too
    max_model_len: int | None


class Client:
    """Asks one server for streams, or for embeddings.

    Args:
        base_url: of the server, without a path.
        backend: one of ``ENDPOINTS``, which names the path and the form of requests.
        endpoint: another path; None for the backend's.
        headers: that every request has.
        fields: that every request's body has, beside prompt and length.
        insecure: the server's TLS certificate is not checked.
    """

    def __init__(
        self,
        base_url: str,
        backend: str,
        endpoint: str | None = None,
        headers: dict[str, str] | None = None,
        fields: dict[str, Any] | None = None,
        insecure: bool = False,
    ):
        self.is_chat = backend == "openai-chat"
        self.embeds = backend == "openai-embeddings"
        self.endpoint = endpoint or ENDPOINTS[backend]
        self.fields = fields or {}
        unlimited = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        timeout = httpx.Timeout(_SILENCE, connect=30.0, pool=None)
        self._http = httpx.AsyncClient(
            base_url=base_url, headers=headers, limits=unlimited, timeout=timeout,
            verify=not insecure,
        )  # fmt: skip

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *failure) -> None:
        await self._http.aclose()

    async def served_model(self, wanted: str | None) -> ServedModel:
        """The model of this name, or the first one served.

        Raises:
            ValueError: if the server cannot be asked, or serves no such model.
        """
        try:
            response = await self._http.get("/v1/models")
            response.raise_for_status()
            cards = response.json()["data"]
            names = [card["id"] for card in cards]
        except Exception as error:  # whatever is not there, or speaks otherwise
            where = f"{self._http.base_url}/v1/models"
            raise ValueError(f"{where} does not say what is served: {error}") from error
        card = next((card for card in cards if wanted in (None, card["id"])), None)
        if card is None:
            raise ValueError(f"model must be one of {', '.join(names)}, got {wanted!r}.")
        return ServedModel(card["id"], card.get("root"), card.get("max_model_len"))

    async def health(self) -> float:
        """Ask /health. Returns how many seconds the answer took.

        Raises:
            ValueError: if it is another than 200.
        """
        start = perf_counter()
        try:
            (await self._http.get("/health")).raise_for_status()
        except httpx.HTTPError as error:
            raise ValueError(f"{self._http.base_url}/health: {error}") from error
        return perf_counter() - start

    async def request(self, sample: SampleRequest, request_id: str) -> RequestFuncOutput:
        """Ask for one answer. What goes wrong is in ``error``; nothing is raised for it."""
        output = RequestFuncOutput(start_time=perf_counter())
        try:
            async with self._http.stream(
                "POST", self.endpoint, json=self.body(sample), headers={"x-request-id": request_id}
            ) as response:
                if response.status_code != 200:
                    text = (await response.aread()).decode(errors="replace")
                    output.error = f"status {response.status_code}: {text[:_LONGEST_ERROR]}"
                elif self.embeds:
                    await self._read_embedding(response, output)
                else:
                    await self._read(response, output)
        except (httpx.HTTPError, AttributeError, LookupError, TypeError, ValueError) as error:
            # the last four come of an answer in another form than OpenAI's
            output.error = f"{type(error).__name__}: {error}".rstrip(": ")
        output.success = not output.error
        return output

    def body(self, sample: SampleRequest) -> dict[str, Any]:
        """The request as it goes over the wire."""
        streams = {"stream": True, "stream_options": {"include_usage": True}}
        body = ({} if self.embeds else streams) | self.fields
        if sample.lora_name is not None:
            body["model"] = sample.lora_name
        if self.embeds:
            return body | {"input": sample.prompt}
        if self.is_chat:
            return body | {"messages": sample.messages, "max_completion_tokens": sample.output_len}
        return body | {"prompt": sample.prompt, "max_tokens": sample.output_len}

    async def _read_embedding(self, response: httpx.Response, output: RequestFuncOutput) -> None:
        answer = json.loads(await response.aread())
        output.latency = perf_counter() - output.start_time
        output.prompt_len = answer["usage"]["prompt_tokens"]

    async def _read(self, response: httpx.Response, output: RequestFuncOutput) -> None:
        start = last = output.start_time
        pieces: list[str] = []
        is_whole = False
        async for line in response.aiter_lines():
            if not line.startswith("data:"):
                continue  # an empty line, or a comment that keeps the connection open
            now = perf_counter()
            data = line[5:].strip()
            if data == "[DONE]":
                is_whole = True
                break
            try:
                event = json.loads(data)
            except ValueError:
                output.error = f"an event that is no JSON: {data[:_LONGEST_ERROR]}"
                return
            if error := event.get("error"):
                output.error = f"in the stream: {json.dumps(error)[:_LONGEST_ERROR]}"
                return
            if usage := event.get("usage"):
                output.prompt_len = usage["prompt_tokens"]
                output.output_tokens = usage["completion_tokens"]
            for choice in event.get("choices") or ():
                text = self._text(choice)
                if not (text or choice.get("finish_reason")):
                    continue  # a chat's first event names who speaks, and says nothing
                if pieces:
                    output.itl.append(now - last)
                else:
                    output.ttft = now - start
                pieces.append(text)
                last = now
        output.latency = last - start
        output.generated_text = "".join(pieces)
        if not (pieces and is_whole):
            output.error = "the stream ended before its answer did"

    def _text(self, choice: dict[str, Any]) -> str:
        if not self.is_chat:
            return choice.get("text") or ""
        delta = choice.get("delta") or {}
        return delta.get("content") or delta.get("reasoning") or ""
