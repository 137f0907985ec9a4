"""ChatChunkBuilder: the chunks of a stream of /v1/chat/completions.

(vLLM: ``chat_completion_stream_generator`` in
vllm/entrypoints/openai/chat_completion/serving.py)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from minivllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from minivllm.entrypoints.openai.chat_completion.tool_choice import ToolChoice, ToolStream
from minivllm.entrypoints.openai.logprobs import TokenNames, chat_logprobs
from minivllm.entrypoints.openai.streaming.chunk_builder import ChunkBuilder
from minivllm.entrypoints.openai.streaming.chunk_writer import to_json
from minivllm.entrypoints.openai.usage import UsagePolicy, usage_dict
from minivllm.outputs import CompletionOutput, RequestOutput


class ChatChunkBuilder(ChunkBuilder):
    """Chunks with deltas of the messages of all choices; the first of each has the role.

    Args:
        request, head, fingerprint, usage: as for ``ChunkBuilder``.
        role: of the messages.
        echo: the text that each message begins with.
        names: of tokens in logprobs.
        tools: the tools that may be called, if any.
        skips_empty: a piece without text gives no chunk.
    """

    request: ChatCompletionRequest

    def __init__(
        self,
        request: ChatCompletionRequest,
        head: dict,
        fingerprint: str,
        usage: UsagePolicy,
        *,
        role: str,
        echo: str,
        names: TokenNames,
        tools: ToolChoice | None,
        skips_empty: bool,
    ):
        super().__init__(request, head, fingerprint, usage, num_prompts=1)
        self._role = role
        self._echo = echo
        self._names = names
        self._tools = tools
        self._skips_empty = skips_empty
        self._calls: dict[int, ToolStream] = {}
        self._shows_tokens = bool(request.return_token_ids or request.logprobs)

    def chunks(self, output: RequestOutput) -> Iterator[bytes]:
        if self.begins(output):
            yield from self._first_chunks(output)
        for completion in output.outputs:
            self._tokens[completion.index] += len(completion.token_ids)
            more = self._usage_so_far(self._tokens[completion.index])
            for choice, ends in self._choices(completion):
                yield self.writer.chunk(choice, ends, more)

    def _usage_so_far(self, num_tokens: int) -> dict[str, Any]:
        """Usage beside choices, if every chunk has it; with one key more than in completions."""
        if not self.always:
            return {}
        (prompt,) = self._prompts.values()
        return {"usage": usage_dict(prompt, num_tokens) | {"completion_tokens_details": None}}

    def _first_chunks(self, output: RequestOutput) -> Iterator[bytes]:
        """First chunks of each choice: its role and, with ``echo``, the text that is continued."""
        request = self.request
        usage = self._usage_so_far(0)
        more: dict[str, Any] = {
            "prompt_token_ids": output.prompt_token_ids if request.return_token_ids else None,
            "prompt_text": output.prompt if request.return_prompt_text else None,
        }
        deltas = [({"role": self._role, "content": ""}, more | usage)]
        if self._echo:
            deltas.append(({"content": self._echo}, usage))
        for delta, beside in deltas:
            for index in range(request.n):
                choice = (
                    f'{{"index":{index},"delta":{to_json(delta)},"logprobs":null,'
                    '"finish_reason":null}'
                )
                yield self.writer.chunk(choice, more=beside)

    def _choices(self, completion: CompletionOutput) -> Iterator[tuple[str, bool]]:
        """Chunks of a piece of a choice, as JSON, each with True if it ends the choice.

        One chunk, or any number of them where calls are parsed. The first has the logprobs and ids
        of the piece's tokens.
        """
        reason = completion.finish_reason
        deltas = self._deltas(completion.index, completion.text, reason is not None)
        if not deltas and (reason is not None or self._shows_tokens):
            deltas.append({})
        logprobs = to_json(logprobs_of(completion, self.request, self._names))
        token_ids = to_json(completion.token_ids if self.request.return_token_ids else None)
        for place, delta in enumerate(deltas, 1):
            end = "null"
            if ends := reason is not None and place == len(deltas):
                shown = self._shown_reason(completion.index, reason)
                end = f'{to_json(shown)},"stop_reason":{to_json(completion.stop_reason)}'
            choice = (
                f'{{"index":{completion.index},"delta":{to_json(delta)},"logprobs":{logprobs},'
                f'"finish_reason":{end},"token_ids":{token_ids}}}'
            )
            yield choice, ends
            logprobs = "null"
            token_ids = "null"

    def _deltas(self, index: int, text: str, finished: bool) -> list[dict]:
        """Deltas of a message for a piece of its text."""
        if self._tools is None:
            return [] if not text and self._skips_empty else [{"content": text}]
        calls = self._calls.get(index)
        if calls is None:
            calls = self._calls[index] = ToolStream(self._tools)
        return calls.deltas(text, finished)

    def _shown_reason(self, index: int, reason: str | None) -> str | None:
        if self._tools is None:
            return reason
        return self._tools.finish_reason(reason, self._calls[index].called)


def logprobs_of(
    completion: CompletionOutput, request: ChatCompletionRequest, names: TokenNames
) -> dict | None:
    """Logprobs of an output's tokens, if the request asks for them."""
    if not request.logprobs or completion.logprobs is None:
        return None
    most = request.top_logprobs or 0
    return chat_logprobs(completion.token_ids, completion.logprobs, most, names)
