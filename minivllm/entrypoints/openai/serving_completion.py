"""/v1/completions: prompts in, continuations out, whole or as a stream.

(vLLM: vllm/entrypoints/openai/completion/serving.py)
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from fastapi import Request

from minivllm.entrypoints.openai.completion_events import CompletionEvents
from minivllm.entrypoints.openai.completion_protocol import (
    CompletionLogProbs,
    CompletionRequest,
    CompletionResponse,
    CompletionResponseChoice,
)
from minivllm.entrypoints.openai.errors import JSON
from minivllm.entrypoints.openai.event_stream import until_done_or_gone
from minivllm.entrypoints.openai.logprobs import completion_logprobs, prompt_logprobs
from minivllm.entrypoints.openai.output_stream import Asked, OutputStream
from minivllm.entrypoints.openai.serving import OpenAIServing
from minivllm.outputs import CompletionOutput, Logprob, RequestOutput
from minivllm.sampling_params import BeamSearchParams, SamplingParams


class OpenAIServingCompletion(OpenAIServing):
    """Answers requests of /v1/completions."""

    async def create_completion(self, request: CompletionRequest, raw: Request):
        """A response: JSON, or an event stream.

        Raises:
            RequestError, ValueError: for what is found before the engine is asked.
        """
        self.served.check_model(request.model)
        self.check_rank(raw)
        self.served.admit(raw.scope, request.n * len(request.prompts))
        request_id = self.request_id("cmpl", request, raw)
        asked: list[Asked] = []
        truncates = request.truncate_prompt_tokens is not None
        for index, prompt in enumerate(request.prompts):
            if isinstance(prompt, str):
                text: str | None = prompt
                token_ids = await self.encode(prompt, request.add_special_tokens, truncates)
            else:
                text, token_ids = None, prompt
                if request.echo and truncates:  # what is echoed is not cut
                    text = self.tokenizer.decode(prompt)
            token_ids = self.cut(token_ids, request, request.max_tokens)
            params = self._params(request, len(token_ids))
            await self.check_grammar(params)
            one = {"prompt": text, "prompt_token_ids": token_ids, "cache_salt": request.cache_salt}
            asked.append(self.to_ask(request, one, params, f"{request_id}-{index}", raw))
        head = self.head(request_id, "text_completion", self.served.names[0])
        if request.stream:
            return OutputStream(self.engine, asked, CompletionEvents(self, request, asked, head))
        whole = asyncio.ensure_future(_all_of([self.last_output(request, one) for one in asked]))
        outputs = await until_done_or_gone(whole, raw.receive)
        return JSON(None if outputs is None else self._whole(request, outputs, head).model_dump())

    def _params(
        self, request: CompletionRequest, prompt_length: int
    ) -> SamplingParams | BeamSearchParams:
        most = self.max_tokens(1 if request.only_echo else request.max_tokens, prompt_length)
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
        usage = self.usage(outputs)
        return CompletionResponse(
            **head,
            choices=choices,
            system_fingerprint=self.served.fingerprint,
            usage=usage,
            metrics=self.metrics(len(choices), outputs[0].metrics, usage.completion_tokens),
        )

    def _choice(
        self,
        request: CompletionRequest,
        index: int,
        output: RequestOutput,
        completion: CompletionOutput,
    ) -> CompletionResponseChoice:
        text, logprobs = self.shown(request, output, completion, first=True, offset=0)
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

    def shown(
        self,
        request: CompletionRequest,
        output: RequestOutput,
        completion: CompletionOutput,
        first: bool,
        offset: int,
    ) -> tuple[str, dict[str, list] | None]:
        """The text of a choice or piece, and its tokens' logprobs if they are asked for.

        The first begins with the prompt, if that is to be echoed; its text is left out where the
        ids are returned (as in vLLM).
        """
        text, token_ids = completion.text, completion.token_ids
        known: list[dict[int, Logprob] | None] = [*(completion.logprobs or ())]
        if request.echo and first:
            prompt = output.prompt
            if prompt is None:
                prompt = self.tokenizer.decode(output.prompt_token_ids)
            prompt = "" if request.return_token_ids else prompt
            nothing = request.only_echo
            text = prompt if nothing else prompt + text
            token_ids = [*output.prompt_token_ids, *([] if nothing else token_ids)]
            # none of a prompt that was aborted before it was computed
            prompt_known = output.prompt_logprobs or [None] * len(output.prompt_token_ids)
            known = [*prompt_known, *([] if nothing else known)]
        if request.logprobs is None:
            return text, None
        as_ids = self.shows_ids(request)
        return text, completion_logprobs(
            token_ids, known, request.logprobs, self.tokenizer, as_ids, offset
        )


async def _all_of(outputs: list[Coroutine]) -> list[RequestOutput]:
    """The whole outputs; if one is refused, the others end, too."""
    tasks = [asyncio.ensure_future(output) for output in outputs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
