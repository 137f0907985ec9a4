"""/v1/chat/completions: a conversation in, the next message out, whole or as a stream.

(vLLM: vllm/entrypoints/openai/chat_completion/serving.py)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from fastapi import Request

from minivllm.entrypoints.chat_messages import text_of
from minivllm.entrypoints.openai.chat_protocol import (
    ChatCompletionLogProbs,
    ChatCompletionRequest,
    ChatCompletionResponse,
    ChatCompletionResponseChoice,
    ChatMessage,
)
from minivllm.entrypoints.openai.conversation import shown_tools
from minivllm.entrypoints.openai.errors import JSON
from minivllm.entrypoints.openai.logprobs import chat_logprobs, prompt_logprobs
from minivllm.entrypoints.openai.protocol import PromptTokenUsageInfo
from minivllm.entrypoints.openai.serving import OpenAIServing, usage_dict
from minivllm.entrypoints.openai.stream import (
    DONE,
    ChunkWriter,
    EventStream,
    error_event,
    last_of,
    to_json,
    until_done_or_gone,
)
from minivllm.entrypoints.openai.tool_choice import ToolChoice, ToolStream
from minivllm.outputs import CompletionOutput, RequestOutput
from minivllm.sampling_params import BeamSearchParams, SamplingParams


class OpenAIServingChat(OpenAIServing):
    """Answers requests of /v1/chat/completions."""

    async def create_chat_completion(self, request: ChatCompletionRequest, raw: Request):
        """A response: JSON, or an event stream.

        Raises:
            RequestError, ValueError: for what is found before the engine is asked.
        """
        self.served.check_model(request.model)
        self.check_rank(raw)
        self.served.admit(raw.scope, request.n)
        tools = self._tool_choice(request)
        text = self.render(request.messages, request)
        truncates = request.truncate_prompt_tokens is not None
        token_ids = await self.encode(text, request.add_special_tokens, truncates)
        token_ids = self.cut(token_ids, request, request.most_tokens)
        asking = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
        most = self.max_tokens(request.most_tokens, len(token_ids), asking)
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
        prompt = {"prompt": text, "prompt_token_ids": token_ids, "cache_salt": request.cache_salt}
        engine_id = self.engine_id(request_id, 0)
        outputs = self.generate(request, prompt, params, engine_id, raw)
        name = self.served.names[0]
        if request.stream:
            head = self.head(request_id, "chat.completion.chunk", name)
            return EventStream(self._events(request, outputs, head, tools))
        last = await until_done_or_gone(asyncio.ensure_future(last_of(outputs)), raw.receive)
        if last is None:
            return JSON(None)
        head = self.head(request_id, "chat.completion", name)
        return JSON(self._whole(request, last, head, tools).model_dump())

    def prompt_details(self, prompt: int, cached: int) -> PromptTokenUsageInfo | None:
        """In chat, also how many tokens were added to the cache: whole blocks, but no cached."""
        details, args = super().prompt_details(prompt, cached), self.engine.args
        if details is not None:
            whole = prompt - prompt % args.block_size if args.enable_prefix_caching else 0
            details.created_cache_tokens = max(0, whole - cached)
        return details

    def _tool_choice(self, request: ChatCompletionRequest) -> ToolChoice | None:
        tools = shown_tools(request.tools)
        can_choose = self.args.enable_auto_tool_choice and self.args.tool_call_parser
        if not tools or request.tool_choice == "none":
            return None
        if request.tool_choice is None and not can_choose:
            return None  # whoever says null does not insist
        parallel = request.parallel_tool_calls is not False
        return ToolChoice(tools, request.tool_choice, parallel, self.args)

    def _role(self, request: ChatCompletionRequest) -> str:
        """The role of the answer: of the opened turn, or of the message that is continued."""
        if request.add_generation_prompt:
            return self.args.response_role
        return request.messages[-1]["role"]

    def _echo(self, request: ChatCompletionRequest) -> str:
        """With ``echo``: the last message, if it is the speaker's own."""
        last = request.messages[-1]
        own = request.echo and last["role"] == self._role(request)
        return text_of(last.get("content")) if own else ""

    # -- whole ---------------------------------------------------------------------------------

    def _whole(
        self,
        request: ChatCompletionRequest,
        output: RequestOutput,
        head: dict,
        tools: ToolChoice | None,
    ) -> ChatCompletionResponse:
        return ChatCompletionResponse(
            **head,
            choices=[self._choice(request, completion, tools) for completion in output.outputs],
            system_fingerprint=self.served.fingerprint,
            usage=self.usage([output]),
            prompt_logprobs=prompt_logprobs(output.prompt_logprobs),
            prompt_token_ids=output.prompt_token_ids if request.return_token_ids else None,
            prompt_text=output.prompt if request.return_prompt_text else None,
            metrics=self.metrics([output]),
        )

    def _choice(
        self,
        request: ChatCompletionRequest,
        completion: CompletionOutput,
        tools: ToolChoice | None,
    ) -> ChatCompletionResponseChoice:
        logprobs = self._logprobs(request, completion)
        content: str | None = completion.text
        calls: list[dict] = []
        finish_reason = completion.finish_reason
        if tools is not None:
            content, calls, finish_reason = tools.message(completion.text, finish_reason)
        if request.echo:
            content = self._echo(request) + (content or "")
        return ChatCompletionResponseChoice(
            index=completion.index,
            message=ChatMessage(role=self._role(request), content=content, tool_calls=calls),
            logprobs=None if logprobs is None else ChatCompletionLogProbs(**logprobs),
            finish_reason=finish_reason,
            stop_reason=completion.stop_reason,
            token_ids=completion.token_ids if request.return_token_ids else None,
        )

    def _logprobs(
        self, request: ChatCompletionRequest, completion: CompletionOutput
    ) -> dict | None:
        if not request.logprobs or completion.logprobs is None:
            return None
        return chat_logprobs(
            completion.token_ids,
            completion.logprobs,
            request.top_logprobs or 0,
            self.tokenizer,
            self.shows_ids(request),
        )

    # -- streams -------------------------------------------------------------------------------

    async def _events(
        self,
        request: ChatCompletionRequest,
        outputs: AsyncGenerator,
        head: dict,
        tools: ToolChoice | None,
    ) -> AsyncGenerator[bytes, None]:
        at_end, always = self.wants_usage(request)
        writer = ChunkWriter(head, self.served.fingerprint, at_end)
        tokens, prompt, cached, begun = [0] * request.n, 0, 0, False
        streams = [] if tools is None else [ToolStream(tools) for _ in range(request.n)]
        try:
            async for output in outputs:
                if not begun:
                    prompt, cached = len(output.prompt_token_ids), output.num_cached_tokens or 0
                    begun = True
                    for event in self._first_events(request, output, writer, always):
                        yield event
                for completion in output.outputs:
                    tokens[completion.index] += len(completion.token_ids)
                    more = None
                    if always:
                        more = {"usage": _usage(prompt, tokens[completion.index])}
                    finished = completion.finish_reason is not None
                    if tools is None:
                        yield writer.event(self._piece(request, completion), finished, more)
                        continue
                    pieces = self._tool_pieces(request, completion, streams[completion.index])
                    for piece, ends in pieces:
                        yield writer.event(piece, ends, more)
            if at_end:
                yield writer.usage(
                    usage_dict(prompt, sum(tokens), self.prompt_details(prompt, cached))
                )
        except Exception as error:
            yield error_event(error)
        finally:
            await outputs.aclose()
        yield DONE

    def _first_events(
        self,
        request: ChatCompletionRequest,
        output: RequestOutput,
        writer: ChunkWriter,
        always_usage: bool,
    ):
        """First events of every choice: the role; then, with ``echo``, the text so far."""
        role, echo = self._role(request), self._echo(request)
        more: dict[str, Any] = {
            "prompt_token_ids": output.prompt_token_ids if request.return_token_ids else None,
            "prompt_text": output.prompt if request.return_prompt_text else None,
        }
        usage: dict[str, Any] = {}
        if always_usage:
            usage = {"usage": _usage(len(output.prompt_token_ids), 0)}
        deltas = [({"role": role, "content": ""}, more | usage)]
        if echo:
            deltas.append(({"content": echo}, usage))
        for delta, beside in deltas:
            for index in range(request.n):
                choice = (
                    f'{{"index":{index},"delta":{to_json(delta)},"logprobs":null,'
                    '"finish_reason":null}'
                )
                yield writer.event(choice, more=beside)

    def _piece(self, request: ChatCompletionRequest, completion: CompletionOutput) -> str:
        """One choice of an event as JSON. Of a server that parses calls, no text is no content."""
        silent = not completion.text and self.args.tool_call_parser
        return self._choice_json(
            completion,
            "{}" if silent else f'{{"content":{to_json(completion.text)}}}',
            to_json(self._logprobs(request, completion)),
            to_json(completion.token_ids) if request.return_token_ids else "null",
            completion.finish_reason,
        )

    def _tool_pieces(
        self, request: ChatCompletionRequest, completion: CompletionOutput, stream: ToolStream
    ) -> Iterator[tuple[str, bool]]:
        """Choices of an event for a piece of an answer with tools; often none, or several.

        What is known of its tokens goes with the first; the last ends the choice, if it ends.
        """
        reason = completion.finish_reason
        deltas = stream.deltas(completion.text, reason is not None)
        known = request.return_token_ids or request.logprobs
        if not deltas and (reason is not None or known):
            deltas.append({})
        logprobs = to_json(self._logprobs(request, completion))
        token_ids = to_json(completion.token_ids) if request.return_token_ids else "null"
        for place, delta in enumerate(deltas, 1):
            ends = reason is not None and place == len(deltas)
            shown = stream.choice.finish_reason(reason, stream.called) if ends else None
            yield self._choice_json(completion, to_json(delta), logprobs, token_ids, shown), ends
            logprobs = token_ids = "null"

    @staticmethod
    def _choice_json(
        completion: CompletionOutput, delta: str, logprobs: str, token_ids: str, reason: str | None
    ) -> str:
        end = "" if reason is None else f',"stop_reason":{to_json(completion.stop_reason)}'
        return (
            f'{{"index":{completion.index},"delta":{delta},"logprobs":{logprobs},'
            f'"finish_reason":{to_json(reason)}{end},"token_ids":{token_ids}}}'
        )


def _usage(prompt: int, answer: int) -> dict[str, Any]:
    """Usage in an event with choices; clients find one key more there than in completions."""
    return usage_dict(prompt, answer) | {"completion_tokens_details": None}
