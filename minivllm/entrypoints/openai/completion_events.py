"""CompletionEvents: the events of a stream of /v1/completions.

(vLLM: ``completion_stream_generator`` in vllm/entrypoints/openai/completion/serving.py)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from minivllm.entrypoints.openai.answer_events import AnswerEvents
from minivllm.entrypoints.openai.chunk_writer import to_json, usage_dict
from minivllm.entrypoints.openai.completion_protocol import CompletionRequest
from minivllm.outputs import CompletionOutput, RequestOutput

if TYPE_CHECKING:
    from minivllm.entrypoints.openai.output_stream import Asked
    from minivllm.entrypoints.openai.serving_completion import OpenAIServingCompletion


class CompletionEvents(AnswerEvents):
    """Pieces of the texts of all choices, which are numbered prompt by prompt.

    Args:
        serving: the endpoint.
        request: what it was asked.
        asked: what the engine is asked for each prompt.
        head: the keys that every event begins with.
    """

    request: CompletionRequest
    serving: OpenAIServingCompletion

    def __init__(
        self,
        serving: OpenAIServingCompletion,
        request: CompletionRequest,
        asked: list[Asked],
        head: dict,
    ):
        super().__init__(serving, request, head, num_prompts=len(asked))
        self._offsets: dict[int, int] = defaultdict(int)  # of the text, by choice
        self._begun: set[int] = set()
        self._places = {one.request_id: place for place, one in enumerate(asked)}
        self._prompts, self._cached = [0] * len(asked), 0  # tokens

    def events(self, output: RequestOutput) -> Iterator[bytes]:
        place = self._places[output.request_id]
        if self._prompts[place] == 0:
            self._prompts[place] = len(output.prompt_token_ids)
            self._cached += output.num_cached_tokens or 0
        for completion in output.outputs:
            index = place * self.request.n + completion.index
            choice = self._piece(index, output, completion)
            self._tokens[index] += len(completion.token_ids)
            more = None
            if self.always:
                more = {"usage": usage_dict(self._prompts[place], self._tokens[index])}
            yield self.writer.event(choice, completion.finish_reason is not None, more)

    def usage(self) -> dict:
        prompts = sum(self._prompts)
        details = self.serving.prompt_details(prompts, self._cached)
        return usage_dict(prompts, sum(self._tokens.values()), details)

    def _piece(self, index: int, output: RequestOutput, completion: CompletionOutput) -> str:
        """One choice of an event as JSON."""
        request, first = self.request, index not in self._begun
        text, logprobs = self.serving.shown(
            request, output, completion, first, self._offsets[index]
        )
        self._begun.add(index)
        if logprobs and logprobs["tokens"]:  # of tokens: their text may be held back
            self._offsets[index] = logprobs["text_offset"][-1] + len(logprobs["tokens"][-1])
        shows_prompt = first and (request.echo or request.return_token_ids)
        prompt_ids = to_json(output.prompt_token_ids) if shows_prompt else "null"
        token_ids = to_json(completion.token_ids) if request.return_token_ids else "null"
        return (
            f'{{"index":{index},"text":{to_json(text)},"logprobs":{to_json(logprobs)},'
            f'"finish_reason":{to_json(completion.finish_reason)},'
            f'"stop_reason":{to_json(completion.stop_reason)},'
            f'"prompt_token_ids":{prompt_ids},"token_ids":{token_ids}}}'
        )
