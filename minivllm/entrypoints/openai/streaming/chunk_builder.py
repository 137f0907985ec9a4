"""ChunkBuilder: OpenAI's chunks of one stream, made from the engine's outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator

from minivllm.entrypoints.openai.generation_request import GenerationRequest
from minivllm.entrypoints.openai.streaming.chunk_writer import ChunkWriter
from minivllm.entrypoints.openai.usage import UsagePolicy, usage_dict
from minivllm.outputs import RequestMetrics, RequestOutput


class ChunkBuilder(ABC):
    """Base of the chunk builders of completions and chat.

    Args:
        request: the request.
        head: the first keys of every chunk.
        fingerprint: of the server.
        usage: decides which counts and times are shown.
        num_prompts: number of the request's prompts.
    """

    def __init__(
        self,
        request: GenerationRequest,
        head: dict,
        fingerprint: str,
        usage: UsagePolicy,
        num_prompts: int,
    ):
        self.request = request
        self.usage_policy = usage
        self.at_end, self.always = usage.in_stream(request)
        self.writer = ChunkWriter(head, fingerprint, self.at_end)
        self.interval = 1 if request.use_beam_search else request.stream_interval or 1
        self._num_choices = num_prompts * request.n
        self._times: RequestMetrics | None = None  # of the last output
        # By choice; no list, since the request's n is not checked yet.
        self._tokens: dict[int, int] = defaultdict(int)
        self._prompts: dict[str, int] = {}  # tokens of each, by the engine's request id
        self._cached = 0
        # With an interval, by the engine's request id: output that is not in a chunk yet, or None.
        # A request has no entry before its first chunk.
        self._joined: dict[str, RequestOutput | None] = {}

    def build(self, output: RequestOutput) -> bytes:
        """Events for an output: often one, sometimes none, or several in a row."""
        self._times = output.metrics
        if self.request.use_beam_search:
            if not output.finished:
                return b""  # until the end, a beam's text may be replaced by another's
            show_stop_tokens(output, self.request.include_stop_str_in_output)
        if self.interval > 1:
            output = self._join(output)
            if not self._is_due(output):
                return b""
            self._joined[output.request_id] = None
        return b"".join(self.chunks(output))

    def finish(self) -> bytes:
        """The event with usage and times at the end, if the request asks for it."""
        if not self.at_end:
            return b""
        num_tokens = sum(self._tokens.values())
        times = self.usage_policy.times(self._num_choices, self._times, num_tokens)
        return self.writer.usage(self.usage(), times)

    @abstractmethod
    def chunks(self, output: RequestOutput) -> Iterator[bytes]:
        """Yield the events for an output that is due."""

    def begins(self, output: RequestOutput) -> bool:
        """True for the first output of a prompt, whose tokens are then counted."""
        if output.request_id in self._prompts:
            return False
        self._prompts[output.request_id] = len(output.prompt_token_ids)
        self._cached += output.num_cached_tokens or 0
        return True

    def usage(self) -> dict:
        """Usage of the whole answer."""
        prompts = sum(self._prompts.values())
        details = self.usage_policy.prompt_details(prompts, self._cached)
        return usage_dict(prompts, sum(self._tokens.values()), details)

    def _join(self, output: RequestOutput) -> RequestOutput:
        waiting = self._joined.get(output.request_id)
        if waiting is None:
            return output
        waiting.add(output)
        return waiting

    def _is_due(self, output: RequestOutput) -> bool:
        """True for enough tokens, for the first output and for the last; else keep the output."""
        enough = any(len(choice.token_ids) >= self.interval for choice in output.outputs)
        if enough or output.finished or output.request_id not in self._joined:
            return True
        self._joined[output.request_id] = output
        return False


def show_stop_tokens(output: RequestOutput, include_stop: bool) -> None:
    """Set the stop_reason of each beam that stopped to its last token, as vLLM's server does.

    The token itself stays among the beam's tokens only with ``include_stop``.
    """
    for beam in output.outputs:
        if beam.finish_reason == "stop":
            beam.stop_reason = beam.token_ids[-1]
            if not include_stop:
                beam.token_ids = beam.token_ids[:-1]
