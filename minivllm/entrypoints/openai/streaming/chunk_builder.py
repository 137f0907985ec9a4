"""ChunkBuilder: makes the events of one stream from the engine's outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator

from minivllm.entrypoints.openai.generation_request import GenerationRequest
from minivllm.entrypoints.openai.streaming.chunk_writer import ChunkWriter
from minivllm.entrypoints.openai.usage import UsagePolicy
from minivllm.outputs import RequestMetrics, RequestOutput


class ChunkBuilder(ABC):
    """Base of both endpoints' streams: outputs in, events out, and the usage in the end.

    Args:
        request: the request.
        head: the keys that every event begins with.
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
        # By choice; no list, since nobody has looked yet at how many choices were asked for.
        self._tokens: dict[int, int] = defaultdict(int)
        # By the engine's request id, where events are fewer: what has no event yet, or None; there
        # is nothing before the first event.
        self._joined: dict[str, RequestOutput | None] = {}

    def build(self, output: RequestOutput) -> bytes:
        """The events of an output, one after the other; often one, sometimes none."""
        self._times = output.metrics
        if self.request.use_beam_search:
            if not output.finished:
                return b""  # a beam's text may yet become another's: there is nothing to stream
            show_stop_tokens(output, self.request.include_stop_str_in_output)
        if self.interval > 1:
            output = self._join(output)
            if not self._is_due(output):
                return b""
            self._joined[output.request_id] = None
        return b"".join(self.chunks(output))

    def finish(self) -> bytes:
        """The event with the usage, if it was asked for, and with times, if the server tells."""
        if not self.at_end:
            return b""
        num_tokens = sum(self._tokens.values())
        times = self.usage_policy.times(self._num_choices, self._times, num_tokens)
        return self.writer.usage(self.usage(), times)

    @abstractmethod
    def chunks(self, output: RequestOutput) -> Iterator[bytes]:
        """The events of an output that is to be shown."""

    @abstractmethod
    def usage(self) -> dict:
        """The usage of the whole answer."""

    def _join(self, output: RequestOutput) -> RequestOutput:
        waiting = self._joined.get(output.request_id)
        if waiting is None:
            return output
        waiting.add(output)
        return waiting

    def _is_due(self, output: RequestOutput) -> bool:
        """Whether enough has come together; the first and the last output are shown as they are."""
        enough = any(len(choice.token_ids) >= self.interval for choice in output.outputs)
        if enough or output.finished or output.request_id not in self._joined:
            return True
        self._joined[output.request_id] = output
        return False


def show_stop_tokens(output: RequestOutput, include_stop: bool) -> None:
    """Beams as vLLM's server shows them: each with a stop_reason, the token that completed it.

    Among its tokens that one is only if ``include_stop``.
    """
    for beam in output.outputs:
        if beam.finish_reason == "stop":
            beam.stop_reason = beam.token_ids[-1]
            if not include_stop:
                beam.token_ids = beam.token_ids[:-1]
