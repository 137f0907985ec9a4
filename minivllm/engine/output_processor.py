"""OutputProcessor: detokenizes the core's tokens and makes the RequestOutputs of users.

(vLLM: vllm/v1/engine/output_processor.py)
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from minivllm.engine.core_outputs import EngineCoreOutputs
from minivllm.engine.request_state import RequestState
from minivllm.engine.step_stats import count_tokens, finished_stats
from minivllm.metrics.stats import IterationStats
from minivllm.outputs import RequestOutput
from minivllm.request import Request


class OutputQueue(Protocol):
    """Interface of a queue that takes the outputs of one request or several."""

    def put(self, output: RequestOutput) -> None: ...


@dataclass
class ProcessedOutputs:
    """The RequestOutputs of a step, and what the core must stop."""

    request_outputs: list[RequestOutput] = field(default_factory=list)  # of those without a queue
    # request id and index of sequences that have come to a stop string: the core must end them
    stopped: list[tuple[str, int]] = field(default_factory=list)
    iteration_stats: IterationStats = field(default_factory=IterationStats)


class OutputProcessor:
    """Text and logprobs of all requests that are not finished.

    Args:
        tokenizer: a Hugging Face tokenizer, or None if no text is made.
    """

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.request_states: dict[str, RequestState] = {}

    def add_request(self, request: Request, queue: OutputQueue | None = None) -> None:
        """Register a request: its outputs are made from now on.

        Args:
            request: as the core has it.
            queue: where they go; None returns them from ``process_outputs``.
        """
        self.request_states[request.request_id] = RequestState(request, self.tokenizer, queue)

    def process_outputs(self, core_outputs: EngineCoreOutputs) -> ProcessedOutputs:
        """Detokenize a step's tokens, find stop strings, and make the RequestOutputs."""
        processed = ProcessedOutputs()
        now = time.monotonic()
        for request_id, found in core_outputs.prompt_logprobs.items():
            if request_id in self.request_states:
                self.request_states[request_id].prompt_positions.update(found)
        touched: dict[str, RequestState] = {}
        for output in core_outputs.outputs:
            state = self.request_states.get(output.request_id)
            if state is None:  # aborted meanwhile
                continue
            touched[output.request_id] = state
            count_tokens(processed.iteration_stats, state, output, now)
            if state.add(output, now):
                processed.stopped.append((output.request_id, output.index))
        for state in touched.values():
            news = state.make_output(now)
            if news is None:
                continue
            if news.finished:
                processed.iteration_stats.finished_requests.append(finished_stats(state, now))
                del self.request_states[state.request_id]
            queue = state.queue
            (processed.request_outputs.append if queue is None else queue.put)(news)
        return processed

    def abort_requests(self, request_ids: Iterable[str]) -> list[RequestOutput]:
        """Drop requests. Returns their last outputs; unknown ids have none."""
        outputs: list[RequestOutput] = []
        for request_id in request_ids:
            state = self.request_states.get(request_id)
            if state is not None:
                del self.request_states[request_id]
                state.abort()
                last = state.make_output(time.monotonic())
                assert last is not None, "it has ended"
                outputs.append(last)
        return outputs
