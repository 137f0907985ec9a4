"""CompletionChunkBuilder: the chunks of a stream of /v1/completions.

(vLLM: ``completion_stream_generator`` in vllm/entrypoints/openai/completion/serving.py)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from minivllm.entrypoints.openai.completion.protocol import CompletionRequest
from minivllm.entrypoints.openai.logprobs import TokenNames, completion_logprobs
from minivllm.entrypoints.openai.streaming.chunk_builder import ChunkBuilder
from minivllm.entrypoints.openai.streaming.chunk_writer import to_json
from minivllm.entrypoints.openai.usage import UsagePolicy, usage_dict
from minivllm.outputs import CompletionOutput, Logprob, RequestOutput


class CompletionChunkBuilder(ChunkBuilder):
    """Chunks with pieces of the texts of all choices, which are numbered prompt by prompt.

    Args:
        request, head, fingerprint, usage: as for ``ChunkBuilder``.
        request_ids: the engine's, one for each prompt.
        names: of tokens in logprobs.
    """

    request: CompletionRequest

    def __init__(
        self,
        request: CompletionRequest,
        head: dict,
        fingerprint: str,
        usage: UsagePolicy,
        *,
        request_ids: list[str],
        names: TokenNames,
    ):
        super().__init__(request, head, fingerprint, usage, num_prompts=len(request_ids))
        self._names = names
        self._offsets: dict[int, int] = defaultdict(int)  # of the text, by choice
        self._begun: set[int] = set()
        self._places = {one: place for place, one in enumerate(request_ids)}

    def chunks(self, output: RequestOutput) -> Iterator[bytes]:
        place = self._places[output.request_id]
        self.begins(output)
        for completion in output.outputs:
            index = place * self.request.n + completion.index
            choice = self._piece(index, output, completion)
            self._tokens[index] += len(completion.token_ids)
            more = None
            if self.always:
                more = {"usage": usage_dict(self._prompts[output.request_id], self._tokens[index])}
            yield self.writer.chunk(choice, completion.finish_reason is not None, more)

    def _piece(self, index: int, output: RequestOutput, completion: CompletionOutput) -> str:
        """The choice of a chunk as JSON."""
        request = self.request
        first = index not in self._begun
        text, logprobs = text_and_logprobs(
            request, output, completion, self._names, first=first, offset=self._offsets[index]
        )
        self._begun.add(index)
        if logprobs and logprobs["tokens"]:  # these count the tokens whose text is held back, too
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


def text_and_logprobs(
    request: CompletionRequest,
    output: RequestOutput,
    completion: CompletionOutput,
    names: TokenNames,
    first: bool = True,
    offset: int = 0,
) -> tuple[str, dict[str, list] | None]:
    """The text of a choice or of a piece of it, and the logprobs if the request asks for them.

    With ``echo`` the first piece begins with the prompt; its text is left out where the ids are
    returned (as in vLLM).

    Args:
        request: the request.
        output: of its prompt.
        completion: the choice or piece.
        names: of tokens in logprobs.
        first: it begins its choice.
        offset: characters of the choice before it.
    """
    text = completion.text
    token_ids = completion.token_ids
    known: list[dict[int, Logprob] | None] = [*(completion.logprobs or ())]
    if request.echo and first:
        prompt = output.prompt
        if prompt is None:
            prompt = names.tokenizer.decode(output.prompt_token_ids)
        prompt = "" if request.return_token_ids else prompt
        nothing = request.only_echo
        text = prompt if nothing else prompt + text
        token_ids = [*output.prompt_token_ids, *([] if nothing else token_ids)]
        # a prompt that was aborted before it was computed has none
        prompt_known = output.prompt_logprobs or [None] * len(output.prompt_token_ids)
        known = [*prompt_known, *([] if nothing else known)]
    if request.logprobs is None:
        return text, None
    return text, completion_logprobs(
        token_ids, known, most=request.logprobs, names=names, offset=offset
    )
