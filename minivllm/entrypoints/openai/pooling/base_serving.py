"""PoolingServing: base of the endpoints of a pooling model, from a body's prompts to outputs.

(vLLM: vllm/entrypoints/pooling/base/serving.py)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import TypeVar

from fastapi import Request

from minivllm.engine.input_processor import EngineInput
from minivllm.entrypoints.openai.errors import RequestError
from minivllm.entrypoints.openai.pooling.base_protocol import MOST_PROMPTS, PoolingFields
from minivllm.entrypoints.openai.prompts import SHORT
from minivllm.entrypoints.openai.protocol import UsageInfo
from minivllm.entrypoints.openai.serving import OpenAIServing
from minivllm.entrypoints.openai.streaming.event_stream import until_done_or_gone
from minivllm.entrypoints.openai.streaming.generation_response import EngineRequest
from minivllm.entrypoints.scorer import Prompt
from minivllm.lora.request import LoRARequest
from minivllm.outputs import PoolingOutput, PoolingRequestOutput

T = TypeVar("T")


class PoolingServing(OpenAIServing):
    """Base class of a pooling model's endpoints."""

    def begin(self, request: PoolingFields, raw: Request, num_prompts: int) -> LoRARequest | None:
        """Check a request and count its prompts. Returns its adapter.

        Raises:
            RequestError: if it is refused.
        """
        lora_request = self.models.check_model(request.model)
        self.data_parallel_rank(raw)  # refused before anything begins
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
                EngineInput(**prompt, cache_salt=request.cache_salt),
                params,
                name=f"{request_id}-{index}",
                raw=raw,
                lora_request=lora_request,
            )
            for index, (prompt, params) in enumerate(prompts)
        ]
        return await until_done_or_gone(asyncio.ensure_future(self._run(requests)), raw.receive)

    async def _run(self, requests: list[EngineRequest]) -> list[PoolingRequestOutput]:
        collectors = []
        try:
            for one in requests:
                collector = await self.engine.add_request(
                    one.request_id,
                    one.prompt,
                    one.params,
                    priority=one.priority,
                    lora_request=one.lora_request,
                    data_parallel_rank=one.data_parallel_rank,
                )
                collectors.append(collector)
            outputs = [await collector.get() for collector in collectors]
        finally:
            for collector in collectors:
                self.engine.release(collector)
        for output in outputs:
            _check_numbers(output.outputs)
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


def _check_numbers(output: PoolingOutput) -> None:
    """Raise unless there are numbers, and JSON can hold them: it has neither NaN nor infinity."""
    if output.data.numel() == 0:
        raise RequestError(
            "the request was aborted",
            status=HTTPStatus.SERVICE_UNAVAILABLE,
            kind="Service Unavailable",
        )
    output.check_numbers()
