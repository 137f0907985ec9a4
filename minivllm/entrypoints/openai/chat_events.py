"""ChatEvents: the events of a stream of /v1/chat/completions.

(vLLM: ``chat_completion_stream_generator`` in
vllm/entrypoints/openai/chat_completion/serving.py)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from minivllm.entrypoints.openai.answer_events import AnswerEvents
from minivllm.entrypoints.openai.chat_protocol import ChatCompletionRequest
from minivllm.entrypoints.openai.chunk_writer import to_json, usage_dict
from minivllm.entrypoints.openai.tool_choice import ToolChoice, ToolStream
from minivllm.outputs import CompletionOutput, RequestOutput

if TYPE_CHECKING:
    from minivllm.entrypoints.openai.serving_chat import OpenAIServingChat


class ChatEvents(AnswerEvents):
    """Deltas of the messages of all choices; the first of each says whose message it is.

    Args:
        serving: the endpoint.
        request: what it was asked.
        head: the keys that every event begins with.
        tools: that may be called, if any.
    """

    request: ChatCompletionRequest
    serving: OpenAIServingChat

    def __init__(
        self,
        serving: OpenAIServingChat,
        request: ChatCompletionRequest,
        head: dict,
        tools: ToolChoice | None,
    ):
        super().__init__(serving, request, head)
        self._tools = tools
        # By choice; not lists, since nobody has looked yet at how many choices were asked for.
        self._calls: dict[int, ToolStream] = {}
        self._tokens: dict[int, int] = defaultdict(int)
        self._begun = False
        self._prompt, self._cached = 0, 0

    def events(self, output: RequestOutput) -> Iterator[bytes]:
        if not self._begun:
            self._begun = True
            self._prompt = len(output.prompt_token_ids)
            self._cached = output.num_cached_tokens or 0
            yield from self._first_events(output)
        for completion in output.outputs:
            self._tokens[completion.index] += len(completion.token_ids)
            more = self._usage_so_far(self._tokens[completion.index])
            if self._tools is None:
                finished = completion.finish_reason is not None
                yield self.writer.event(self._piece(completion), finished, more)
                continue
            calls = self._calls.get(completion.index) or ToolStream(self._tools)
            self._calls[completion.index] = calls
            for piece, ends in self._tool_pieces(completion, calls):
                yield self.writer.event(piece, ends, more)

    def usage(self) -> dict:
        details = self.serving.prompt_details(self._prompt, self._cached)
        return usage_dict(self._prompt, sum(self._tokens.values()), details)

    def _usage_so_far(self, num_tokens: int) -> dict[str, Any]:
        """Usage beside choices, if every event has it; with one key more than in completions."""
        if not self.always:
            return {}
        return {"usage": usage_dict(self._prompt, num_tokens) | {"completion_tokens_details": None}}

    def _first_events(self, output: RequestOutput) -> Iterator[bytes]:
        """First events of every choice: the role; then, with ``echo``, the text so far."""
        request, usage = self.request, self._usage_so_far(0)
        role, echo = self.serving.role(request), self.serving.echo(request)
        more: dict[str, Any] = {
            "prompt_token_ids": output.prompt_token_ids if request.return_token_ids else None,
            "prompt_text": output.prompt if request.return_prompt_text else None,
        }
        deltas = [({"role": role, "content": ""}, more | usage)]
        if echo:
            deltas.append(({"content": echo}, usage))
        for delta, beside in deltas:
            for index in range(request.n):
                choice = (
                    f'{{"index":{index},"delta":{to_json(delta)},"logprobs":null,'
                    '"finish_reason":null}'
                )
                yield self.writer.event(choice, more=beside)

    def _piece(self, completion: CompletionOutput) -> str:
        """One choice of an event as JSON. Of a server that parses calls, no text is no content."""
        silent = not completion.text and self.serving.args.tool_call_parser
        delta = "{}" if silent else f'{{"content":{to_json(completion.text)}}}'
        return self._choice(completion, delta, *self._known(completion), completion.finish_reason)

    def _tool_pieces(
        self, completion: CompletionOutput, stream: ToolStream
    ) -> Iterator[tuple[str, bool]]:
        """Choices of an event for a piece of an answer with tools; often none, or several.

        What is known of its tokens goes with the first; the last ends the choice, if it ends.
        """
        reason = completion.finish_reason
        deltas = stream.deltas(completion.text, reason is not None)
        if not deltas and (
            reason is not None or self.request.return_token_ids or self.request.logprobs
        ):
            deltas.append({})
        known = self._known(completion)
        for place, delta in enumerate(deltas, 1):
            ends = reason is not None and place == len(deltas)
            shown = stream.choice.finish_reason(reason, stream.called) if ends else None
            yield self._choice(completion, to_json(delta), *known, shown), ends
            known = "null", "null"

    def _known(self, completion: CompletionOutput) -> tuple[str, str]:
        """Logprobs and ids of a piece's tokens as JSON, where they are asked for."""
        logprobs = to_json(self.serving.logprobs(self.request, completion))
        return logprobs, to_json(completion.token_ids if self.request.return_token_ids else None)

    @staticmethod
    def _choice(
        completion: CompletionOutput, delta: str, logprobs: str, token_ids: str, reason: str | None
    ) -> str:
        end = "" if reason is None else f',"stop_reason":{to_json(completion.stop_reason)}'
        return (
            f'{{"index":{completion.index},"delta":{delta},"logprobs":{logprobs},'
            f'"finish_reason":{to_json(reason)}{end},"token_ids":{token_ids}}}'
        )
