"""Serialization of a step's outputs between processes: plain tuples, without prompts.

An output as it is would bring its prompt along each time, which the other side has sent itself, and
the names of its fields. (vLLM: vllm/v1/serial_utils.py, over msgpack)
"""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter

from minivllm.engine.core_loop import Batch
from minivllm.outputs import CompletionOutput, RequestMetrics, RequestOutput
from minivllm.request import Request

_of_batch = attrgetter("refused", "results", "num_running", "num_waiting", "records")
_of_request = attrgetter("request_id", "finished", "num_cached_tokens", "prompt_logprobs")
_of_metrics = attrgetter(*(field.name for field in fields(RequestMetrics)))
_of_completion = attrgetter(*(field.name for field in fields(CompletionOutput)))


def encode(batch: Batch) -> tuple:
    """Encode a step's outputs without their prompts; ``BatchDecoder`` reads them."""
    outputs = [
        (_of_request(o), _of_metrics(o.metrics), [_of_completion(c) for c in o.outputs])
        for o in batch.outputs
    ]
    return outputs, _of_batch(batch)


class BatchDecoder:
    """Decodes outputs in the process that has sent the requests, and keeps their prompts."""

    def __init__(self):
        self._prompts: dict[str, tuple[str | None, list[int]]] = {}

    def remember(self, request: Request) -> None:
        """Keep the prompt of a request that is about to be sent."""
        ids_to_show = list(request.prompt_token_ids)  # the reader's own from here on
        self._prompts[request.request_id] = (request.prompt, ids_to_show)

    def forget(self, request_id: str) -> None:
        """Drop a request: it has no further output."""
        self._prompts.pop(request_id, None)

    def decode(self, encoded: tuple) -> Batch:
        """Decode a batch: the outputs that ``encode`` was given."""
        outputs, rest = encoded
        batch = Batch([self._output(*news) for news in outputs], *rest)
        for request_id in [o.request_id for o in batch.outputs if o.finished]:
            self.forget(request_id)
        for request_id, _ in batch.refused:
            self.forget(request_id)
        return batch

    def _output(self, request: tuple, metrics: tuple, completions: list[tuple]) -> RequestOutput:
        request_id, finished, num_cached_tokens, prompt_logprobs = request
        prompt, prompt_token_ids = self._prompts[request_id]
        return RequestOutput(
            request_id,
            prompt,
            prompt_token_ids,
            prompt_logprobs,
            [CompletionOutput(*completion) for completion in completions],
            finished,
            RequestMetrics(*metrics),
            num_cached_tokens=num_cached_tokens,
        )
