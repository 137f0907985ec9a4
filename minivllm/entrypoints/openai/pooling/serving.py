"""OpenAIServingPooling: embeddings, classes and raw vectors of prompts.

(vLLM: vllm/entrypoints/pooling/base/serving.py and the serving modules beside it)
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, TypeVar

import torch
from fastapi import Request

from minivllm.entrypoints.openai.errors import JSON, RequestError
from minivllm.entrypoints.openai.pooling.protocol import (
    MOST_PROMPTS,
    ClassificationData,
    ClassificationResponse,
    Conversation,
    EmbeddingFields,
    EmbeddingRequest,
    EmbeddingResponse,
    EmbeddingResponseData,
    PoolingFields,
    PoolingRequest,
    PoolingResponse,
    PoolingResponseData,
    Texts,
    pooling_params,
)
from minivllm.entrypoints.openai.prompts import SHORT
from minivllm.entrypoints.openai.protocol import UsageInfo
from minivllm.entrypoints.openai.serving import OpenAIServing
from minivllm.entrypoints.openai.streaming.event_stream import until_done_or_gone
from minivllm.entrypoints.openai.streaming.generation_response import EngineRequest
from minivllm.entrypoints.truncation import encode_texts
from minivllm.lora.request import LoRARequest
from minivllm.outputs import PoolingRequestOutput

T = TypeVar("T")
Prompt = tuple[dict, Any]  # of the engine, and its PoolingParams
_BYTE_ORDERS = {"native": "=", "little": "<", "big": ">"}
_NUMBERS = {"float32": "f4", "float16": "f2"}


class OpenAIServingPooling(OpenAIServing):
    """Endpoints /v1/embeddings, /pooling and /classify."""

    async def create_embedding(self, request: EmbeddingRequest, raw: Request) -> JSON:
        """Embed texts: a vector for each."""

        def answer(head: dict, outputs: list[PoolingRequestOutput]) -> EmbeddingResponse:
            data = [
                EmbeddingResponseData(index=index, embedding=written(one.outputs.data, request))
                for index, one in enumerate(outputs)
            ]
            return EmbeddingResponse(**head, data=data)

        return await self._create("embd", "embed", request, raw, answer)

    async def create_pooling(self, request: PoolingRequest, raw: Request) -> JSON:
        """Give what the pooler makes of texts; for a task of tokens a row for each token."""

        def answer(head: dict, outputs: list[PoolingRequestOutput]) -> PoolingResponse:
            data = [
                PoolingResponseData(index=index, data=written(one.outputs.data, request))
                for index, one in enumerate(outputs)
            ]
            return PoolingResponse(**head, data=data)

        return await self._create("pooling", request.task, request, raw, answer)

    async def create_classify(self, request: Any, raw: Request) -> JSON:
        """Classify texts: probabilities, and the label of the largest one."""
        labels = self.engine.model_config.id2label

        def answer(head: dict, outputs: list[PoolingRequestOutput]) -> ClassificationResponse:
            data = []
            for index, output in enumerate(outputs):
                probs = output.outputs.data
                label = labels.get(int(probs.argmax()))
                numbers = probs.tolist()
                data.append(
                    ClassificationData(
                        index=index, label=label, probs=numbers, num_classes=len(numbers)
                    )
                )
            return ClassificationResponse(**head, data=data)

        return await self._create("classify", "classify", request, raw, answer)

    async def _create(
        self,
        prefix: str,
        task: str | None,
        request: Any,
        raw: Request,
        answer: Callable[[dict, list[PoolingRequestOutput]], Any],
    ) -> JSON:
        """Answer a request of texts or messages.

        Args:
            prefix: of the request's id.
            task: None: the engine's.
            request: the body.
            raw: the HTTP request.
            answer: makes the response of the fields that all have, and of the outputs.
        """
        params = pooling_params(request, task)
        chat = isinstance(request, Conversation)
        lora = self.begin(request, raw, 1 if chat else len(request.prompts))
        prompts = [(one, params) for one in await self._prompts(request)]
        request_id = self.request_id(prefix, request, raw)
        outputs = await self.outputs(request, raw, request_id, prompts, lora)
        if outputs is None:
            return JSON(None)  # the client has gone
        head = self.head(request_id, "list", self.models.model_name(lora))
        response = answer(head | {"usage": self.usage_of(outputs)}, outputs)
        return JSON(response.model_dump())

    async def _prompts(self, request: Texts | Conversation) -> list[dict]:
        """Prompts of a body, tokenized and cut."""
        given: list[str | list[int]]
        if isinstance(request, Conversation):
            given = [self.prompts.render(request.messages, request)]
        else:
            given = request.prompts
        truncation, limit = request.truncation, self.served.max_model_len
        for prompt in given:
            if isinstance(prompt, str):
                self.prompts.check_text(prompt, truncation.truncate_prompt_tokens is not None)

        def encode(prompt: str | list[int]) -> list[int]:
            if not isinstance(prompt, str):
                return truncation.cut(prompt, limit)
            special = request.add_special_tokens
            return encode_texts(self.tokenizer, [prompt], truncation, limit, special)[0]

        texts = [prompt for prompt in given if isinstance(prompt, str)]
        ids = await in_thread(texts, lambda: [encode(prompt) for prompt in given])
        return [
            {"prompt": prompt if isinstance(prompt, str) else None, "prompt_token_ids": one}
            for prompt, one in zip(given, ids, strict=True)
        ]

    # -- of all pooling endpoints --------------------------------------------------------------

    def begin(self, request: PoolingFields, raw: Request, num_prompts: int) -> LoRARequest | None:
        """Check a request and count its prompts. Returns its adapter.

        Raises:
            RequestError: if it is refused.
        """
        lora_request = self.models.check_model(request.model)
        self.check_rank(raw)
        self.prompts.check_keep(request.truncate_prompt_tokens)
        if num_prompts == 0:
            raise RequestError("You must pass at least one prompt", "input")
        if num_prompts > MOST_PROMPTS:
            raise RequestError(
                f"a request may have {MOST_PROMPTS} prompts, got {num_prompts}", "input"
            )
        self.served.admit(raw.scope, num_prompts)
        return lora_request

    async def outputs(
        self,
        request: PoolingFields,
        raw: Request,
        request_id: str,
        prompts: list[Prompt],
        lora_request: LoRARequest | None,
    ) -> list[PoolingRequestOutput] | None:
        """Run prompts, and return their outputs; None if the client goes before the last.

        Raises:
            RequestError, ValueError: if one cannot be run, or gives no numbers; then all end.
        """
        for prompt, _ in prompts:
            self.prompts.check_length(prompt["prompt_token_ids"])
        requests = [
            self.engine_request(
                request,
                prompt | {"cache_salt": request.cache_salt},
                params,
                f"{request_id}-{index}",
                raw,
                lora_request,
            )
            for index, (prompt, params) in enumerate(prompts)
        ]
        return await until_done_or_gone(asyncio.ensure_future(self._run(requests)), raw.receive)

    async def _run(self, requests: list[EngineRequest]) -> list[PoolingRequestOutput]:
        collectors = []
        try:
            for one in requests:
                collector = await self.engine.add_request(
                    one.request_id, one.prompt, one.params, one.priority, one.lora_request
                )
                collectors.append(collector)
            outputs = [await collector.get() for collector in collectors]
        finally:
            for collector in collectors:
                self.engine.release(collector)
        for output in outputs:
            _check_numbers(output.outputs.data)
        return outputs

    def usage_of(self, outputs: list[PoolingRequestOutput]) -> UsageInfo:
        """Tokens of the prompts; there are no others."""
        prompt = sum(len(output.prompt_token_ids) for output in outputs)
        cached = sum(output.num_cached_tokens for output in outputs)
        return UsageInfo(
            prompt_tokens=prompt,
            total_tokens=prompt,
            prompt_tokens_details=self.usage.prompt_details(prompt, cached),
        )


async def in_thread(texts: list[str], tokenize: Callable[[], T]) -> T:
    """Tokenize texts; many or long ones in a thread, so that the event loop goes on."""
    if sum(map(len, texts)) <= SHORT:
        return tokenize()
    return await asyncio.to_thread(tokenize)


def written(data: torch.Tensor, request: EmbeddingFields) -> Any:
    """The numbers of a tensor as a list, or in base64 as the request asks for it."""
    if request.encoding_format == "float":
        return data.tolist()
    kind = _BYTE_ORDERS[request.endianness] + _NUMBERS[request.embed_dtype]
    return base64.b64encode(data.numpy().astype(kind).tobytes()).decode()


def _check_numbers(data: torch.Tensor) -> None:
    """Raise unless these are numbers: JSON has neither NaN nor infinity."""
    if data.numel() == 0:
        raise RequestError(
            "the request was aborted",
            status=HTTPStatus.SERVICE_UNAVAILABLE,
            kind="Service Unavailable",
        )
    if not bool(torch.isfinite(data).all()):
        raise ValueError("the model's output for this input holds a NaN or an infinity.")
