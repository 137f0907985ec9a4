"""OpenAIServingChat: the next message of a conversation, whole or as a stream.

(vLLM: vllm/entrypoints/openai/chat_completion/serving.py)
"""

from __future__ import annotations

import asyncio

from fastapi import Request

from minivllm.entrypoints.chat_messages import text_of
from minivllm.entrypoints.openai.chat_completion.chunk_builder import ChatChunkBuilder, logprobs_of
from minivllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionLogProbs,
    ChatCompletionRequest,
    ChatCompletionResponse,
    ChatCompletionResponseChoice,
    ChatMessage,
)
from minivllm.entrypoints.openai.chat_completion.tool_choice import ToolChoice
from minivllm.entrypoints.openai.conversation import shown_tools
from minivllm.entrypoints.openai.errors import JSON
from minivllm.entrypoints.openai.logprobs import prompt_logprobs
from minivllm.entrypoints.openai.served_model import ServedModel
from minivllm.entrypoints.openai.serving import OpenAIServing
from minivllm.entrypoints.openai.streaming.event_stream import until_done_or_gone
from minivllm.entrypoints.openai.streaming.generation_response import GenerationResponse
from minivllm.entrypoints.openai.usage import ChatUsagePolicy
from minivllm.outputs import CompletionOutput, RequestOutput
from minivllm.sampling_params import BeamSearchParams, SamplingParams


class OpenAIServingChat(OpenAIServing):
    """Endpoint /v1/chat/completions."""

    usage: ChatUsagePolicy

    def __init__(self, served: ServedModel):
        super().__init__(served)
        self.usage = ChatUsagePolicy(served.args, served.engine.args)

    async def create_chat_completion(self, request: ChatCompletionRequest, raw: Request):
        """Answer a request with JSON or an event stream.

        Raises:
            RequestError, ValueError: for an error that is found before the engine has the request.
        """
        lora_request = self.models.check_model(request.model)
        self.data_parallel_rank(raw)  # refused before anything begins
        self.served.admit(raw.scope, request.n)
        tools = self._tool_choice(request)
        truncates = request.truncate_prompt_tokens is not None
        prompt = await self.prompts.of_chat(request, truncates)
        prompt = self.prompts.truncate(prompt, request, request.most_tokens)
        asking = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
        most = self.prompts.max_tokens(request.most_tokens, len(prompt.prompt_token_ids), asking)
        params: SamplingParams | BeamSearchParams
        if request.use_beam_search:
            params = request.to_beam_search_params(most)
        else:
            logprobs = (request.top_logprobs or 0) if request.logprobs else None
            params = request.to_sampling_params(most, self.served.default_sampling, logprobs)
            if tools is not None:
                params = tools.constrain(params, self.tokenizer)
        await self.check_grammar(params)
        request_id = self.request_id("chatcmpl", request, raw)
        engine_request = self.engine_request(
            request,
            prompt,
            params,
            name=f"{request_id}-0",
            raw=raw,
            lora_request=lora_request,
        )
        name = self.models.model_name(lora_request)
        usage = self.usage.for_prompt(prompt)
        if request.stream:
            head = self.head(request_id, "chat.completion.chunk", name)
            chunks = ChatChunkBuilder(
                request,
                head,
                self.served.fingerprint,
                usage,
                role=self.role(request),
                echo=self.echo(request),
                names=self.token_names(request),
                tools=tools,
                skips_empty=bool(self.args.tool_call_parser),
            )
            return GenerationResponse(self.engine, [engine_request], chunks)
        whole = asyncio.ensure_future(self.final_output(request, engine_request))
        last = await until_done_or_gone(whole, raw.receive)
        if last is None:
            return JSON(None)
        head = self.head(request_id, "chat.completion", name)
        return JSON(self._whole(request, last, head, tools, usage).model_dump())

    def _tool_choice(self, request: ChatCompletionRequest) -> ToolChoice | None:
        tools = shown_tools(request.tools)
        can_choose = self.args.enable_auto_tool_choice and self.args.tool_call_parser
        if not tools or request.tool_choice == "none":
            return None
        if request.tool_choice is None and not can_choose:
            return None  # null without a parser: the tools are rendered, calls are not parsed
        return ToolChoice(
            tools,
            request.tool_choice,
            parallel=request.parallel_tool_calls is not False,
            args=self.args,
        )

    def role(self, request: ChatCompletionRequest) -> str:
        """Role of the answer: the server's for a new turn, or that of the continued message."""
        if request.add_generation_prompt:
            return self.args.response_role
        return request.messages[-1]["role"]

    def echo(self, request: ChatCompletionRequest) -> str:
        """Text of the last message if ``echo`` asks for it and the role is the same, else empty."""
        last = request.messages[-1]
        own = request.echo and last["role"] == self.role(request)
        return text_of(last.get("content")) if own else ""

    # -- whole ---------------------------------------------------------------------------------

    def _whole(
        self,
        request: ChatCompletionRequest,
        output: RequestOutput,
        head: dict,
        tools: ToolChoice | None,
        policy: ChatUsagePolicy,
    ) -> ChatCompletionResponse:
        usage = policy.of([output])
        return ChatCompletionResponse(
            **head,
            choices=[self._choice(request, completion, tools) for completion in output.outputs],
            system_fingerprint=self.served.fingerprint,
            usage=usage,
            prompt_logprobs=prompt_logprobs(output.prompt_logprobs),
            prompt_token_ids=output.prompt_token_ids if request.return_token_ids else None,
            prompt_text=output.prompt if request.return_prompt_text else None,
            kv_transfer_params=output.kv_transfer_params,
            metrics=policy.times(request.n, output.metrics, usage.completion_tokens),
        )

    def _choice(
        self,
        request: ChatCompletionRequest,
        completion: CompletionOutput,
        tools: ToolChoice | None,
    ) -> ChatCompletionResponseChoice:
        logprobs = logprobs_of(completion, request, self.token_names(request))
        content: str | None = completion.text
        calls: list[dict] = []
        finish_reason = completion.finish_reason
        if tools is not None:
            content, calls, finish_reason = tools.message(completion.text, finish_reason)
        if request.echo:
            content = self.echo(request) + (content or "")
        return ChatCompletionResponseChoice(
            index=completion.index,
            message=ChatMessage(role=self.role(request), content=content, tool_calls=calls),
            logprobs=None if logprobs is None else ChatCompletionLogProbs(**logprobs),
            finish_reason=finish_reason,
            stop_reason=completion.stop_reason,
            token_ids=completion.token_ids if request.return_token_ids else None,
        )
