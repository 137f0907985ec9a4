"""OpenAIServingPooling: embeddings, classes and raw vectors of prompts.

(vLLM: vllm/entrypoints/pooling/base/serving.py and the serving modules beside it)
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from fastapi import Request

from minivllm.entrypoints.chat_parts import ChatMedia
from minivllm.entrypoints.openai.errors import JSON
from minivllm.entrypoints.openai.pooling.base_protocol import Conversation, Texts, pooling_params
from minivllm.entrypoints.openai.pooling.base_serving import PoolingServing, in_thread
from minivllm.entrypoints.openai.pooling.protocol import (
    ClassificationData,
    ClassificationRequest,
    ClassificationResponse,
    EmbeddingFields,
    EmbeddingRequest,
    EmbeddingResponse,
    EmbeddingResponseData,
    PoolingRequest,
    PoolingResponse,
    PoolingResponseData,
)
from minivllm.entrypoints.truncation import encode_texts
from minivllm.outputs import PoolingRequestOutput

_BYTE_ORDERS = {"native": "=", "little": "<", "big": ">"}
_NUMBERS = {"float32": "f4", "float16": "f2"}


class OpenAIServingPooling(PoolingServing):
    """Endpoints /v1/embeddings, /pooling and /classify."""

    async def create_embedding(self, request: EmbeddingRequest, raw: Request) -> JSON:
        """Embed texts: a vector for each."""

        def answer(head: dict, outputs: list[PoolingRequestOutput]) -> EmbeddingResponse:
            data = [
                EmbeddingResponseData(index=index, embedding=written(one.outputs.data, request))
                for index, one in enumerate(outputs)
            ]
            return EmbeddingResponse(**head, data=data)

        return await self._create("embd", task="embed", request=request, raw=raw, answer=answer)

    async def create_pooling(self, request: PoolingRequest, raw: Request) -> JSON:
        """Give what the pooler makes of texts; for a task of tokens a row for each token."""

        def answer(head: dict, outputs: list[PoolingRequestOutput]) -> PoolingResponse:
            data = [
                PoolingResponseData(index=index, data=written(one.outputs.data, request))
                for index, one in enumerate(outputs)
            ]
            return PoolingResponse(**head, data=data)

        return await self._create(
            "pooling", task=request.task, request=request, raw=raw, answer=answer
        )

    async def create_classify(self, request: ClassificationRequest, raw: Request) -> JSON:
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

        return await self._create(
            "classify", task="classify", request=request, raw=raw, answer=answer
        )

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
            media = ChatMedia(model_name=self.models.model_name())  # it may have none
            given = [self.prompts.render(request, media)]
        else:
            given = request.prompts
        limit = self.served.max_model_len
        truncation = replace(
            request.truncation,
            add_special_tokens=getattr(request, "add_special_tokens", True),
            do_lower_case=self.engine.model_config.do_lower_case,
        )
        for prompt in given:
            if isinstance(prompt, str):
                self.prompts.check_text(prompt, truncation.truncate_prompt_tokens is not None)

        def encode(prompt: str | list[int]) -> list[int]:
            if not isinstance(prompt, str):
                return truncation.cut(prompt, limit, self.tokenizer)
            return encode_texts(self.tokenizer, [prompt], truncation, limit)[0]

        texts = [prompt for prompt in given if isinstance(prompt, str)]
        ids = await in_thread(texts, lambda: [encode(prompt) for prompt in given])
        return [
            {"prompt": prompt if isinstance(prompt, str) else None, "prompt_token_ids": one}
            for prompt, one in zip(given, ids, strict=True)
        ]


def written(data: torch.Tensor, request: EmbeddingFields) -> Any:
    """The numbers of a tensor as a list, or in base64 as the request asks for it."""
    if request.encoding_format == "float":
        return data.tolist()
    kind = _BYTE_ORDERS[request.endianness] + _NUMBERS[request.embed_dtype]
    return base64.b64encode(data.numpy().astype(kind).tobytes()).decode()
