"""OpenAIServingCompletion: continuations of prompts, whole or as a stream.

(vLLM: vllm/entrypoints/openai/completion/serving.py)
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from fastapi import Request

from minivllm.entrypoints.openai.completion.chunk_builder import (
    CompletionChunkBuilder,
    text_and_logprobs,
)
from minivllm.entrypoints.openai.completion.protocol import (
    CompletionLogProbs,
    CompletionRequest,
    CompletionResponse,
    CompletionResponseChoice,
)
from minivllm.entrypoints.openai.errors import JSON
from minivllm.entrypoints.openai.logprobs import prompt_logprobs
from minivllm.entrypoints.openai.serving import OpenAIServing
from minivllm.entrypoints.openai.streaming.event_stream import until_done_or_gone
from minivllm.entrypoints.openai.streaming.generation_response import (
    EngineRequest,
    GenerationResponse,
)
from minivllm.outputs import CompletionOutput, RequestOutput
from minivllm.sampling_params import BeamSearchParams, SamplingParams


class OpenAIServingCompletion(OpenAIServing):
    """Endpoint /v1/completions."""

    async def create_completion(self, request: CompletionRequest, raw: Request):
        """Answer a request with JSON or an event stream.

        Raises:
            RequestError, ValueError: for an error that is found before the engine has the request.
        """
        lora_request = self.models.check_model(request.model)
        self.data_parallel_rank(raw)  # refused before anything begins
        self.served.admit(raw.scope, request.n * len(request.prompts))
        request_id = self.request_id("cmpl", request, raw)
        requests: list[EngineRequest] = []
        truncates = request.truncate_prompt_tokens is not None
        for index, prompt in enumerate(request.prompts):
            if isinstance(prompt, str):
                text: str | None = prompt
                token_ids = await self.prompts.encode(prompt, request.add_special_tokens, truncates)
            else:
                text = None
                token_ids = prompt
                if request.echo and truncates:  # the echoed text is not cut
                    text = self.tokenizer.decode(prompt)
            one = self.engine.input_processor.preprocess(
                {"prompt": text, "prompt_token_ids": token_ids, "cache_salt": request.cache_salt}
            )
            one = self.prompts.truncate(one, request, request.max_tokens)
            params = self._params(request, len(one.prompt_token_ids))
            await self.check_grammar(params)
            engine_request = self.engine_request(
                request,
                one,
                params,
                name=f"{request_id}-{index}",
                raw=raw,
                lora_request=lora_request,
            )
            requests.append(engine_request)
        head = self.head(request_id, "text_completion", self.models.model_name(lora_request))
        if request.stream:
            chunks = CompletionChunkBuilder(
                request,
                head,
                self.served.fingerprint,
                self.usage,
                request_ids=[one.request_id for one in requests],
                names=self.token_names(request),
            )
            return GenerationResponse(self.engine, requests, chunks)
        whole = asyncio.ensure_future(
            _all_of([self.final_output(request, one) for one in requests])
        )
        outputs = await until_done_or_gone(whole, raw.receive)
        return JSON(None if outputs is None else self._whole(request, outputs, head).model_dump())

    def _params(
        self, request: CompletionRequest, prompt_length: int
    ) -> SamplingParams | BeamSearchParams:
        most = self.prompts.max_tokens(
            1 if request.only_echo else request.max_tokens, prompt_length
        )
        if request.use_beam_search:
            return request.to_beam_search_params(most)
        defaults = self.served.default_sampling
        return request.to_sampling_params(most, defaults, request.logprobs)

    # -- whole ---------------------------------------------------------------------------------

    def _whole(
        self, request: CompletionRequest, outputs: list[RequestOutput], head: dict
    ) -> CompletionResponse:
        choices = [
            self._choice(request, place * request.n + completion.index, output, completion)
            for place, output in enumerate(outputs)
            for completion in output.outputs
        ]
        usage = self.usage.of(outputs)
        return CompletionResponse(
            **head,
            choices=choices,
            system_fingerprint=self.served.fingerprint,
            usage=usage,
            metrics=self.usage.times(len(choices), outputs[0].metrics, usage.completion_tokens),
        )

    def _choice(
        self,
        request: CompletionRequest,
        index: int,
        output: RequestOutput,
        completion: CompletionOutput,
    ) -> CompletionResponseChoice:
        text, logprobs = text_and_logprobs(request, output, completion, self.token_names(request))
        return CompletionResponseChoice(
            index=index,
            text=text,
            logprobs=None if logprobs is None else CompletionLogProbs(**logprobs),
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason,
            token_ids=completion.token_ids if request.return_token_ids else None,
            prompt_token_ids=output.prompt_token_ids if request.return_token_ids else None,
            prompt_logprobs=prompt_logprobs(output.prompt_logprobs),
        )


async def _all_of(outputs: list[Coroutine]) -> list[RequestOutput]:
    """Wait for all outputs. An error of one cancels the others."""
    tasks = [asyncio.ensure_future(output) for output in outputs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
