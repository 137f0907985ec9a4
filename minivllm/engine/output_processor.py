"""OutputProcessor: detokenizes the core's tokens and makes the RequestOutputs of users.

(vLLM: vllm/v1/engine/output_processor.py)
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from minivllm.engine.core_outputs import EngineCoreOutputs
from minivllm.engine.output_collector import OutputQueue
from minivllm.engine.pooling_state import PoolingRequestState
from minivllm.engine.request_state import RequestState
from minivllm.metrics.stats import IterationStats
from minivllm.outputs import PoolingRequestOutput, RequestOutput
from minivllm.request import Request


@dataclass
class ProcessedOutputs:
    """Results of processing a step: RequestOutputs, sequences to stop, and counts."""

    # of those without a queue
    request_outputs: list[RequestOutput | PoolingRequestOutput] = field(default_factory=list)
    # request id and index of sequences whose text holds a stop string: the core must end them
    stopped: list[tuple[str, int]] = field(default_factory=list)
    iteration_stats: IterationStats = field(default_factory=IterationStats)


class OutputProcessor:
    """Text (if there is a Hugging Face tokenizer) and logprobs of all unfinished requests."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.request_states: dict[str, RequestState | PoolingRequestState] = {}

    def add_request(self, request: Request, queue: OutputQueue | None = None) -> None:
        """Register a request of the core's. Its outputs go to ``queue``, if that is given."""
        pools = request.pooling_params is not None
        self.request_states[request.request_id] = (
            PoolingRequestState(request, queue)
            if pools
            else RequestState(request, self.tokenizer, queue)
        )

    def process_outputs(self, core_outputs: EngineCoreOutputs) -> ProcessedOutputs:
        """Detokenize a step's tokens, find stop strings, and make the RequestOutputs."""
        processed = ProcessedOutputs()
        stats = processed.iteration_stats
        now = core_outputs.timestamp or time.monotonic()
        # 1. Log probabilities of prompts, which come before any token.
        for request_id, found in core_outputs.prompt_logprobs.items():
            if request_id in self.request_states:
                self.request_states[request_id].prompt_positions.update(found)
        # 2. Tokens become text, which may hold a stop string.
        touched: dict[str, RequestState | PoolingRequestState] = {}
        for output in core_outputs.outputs:
            state = self.request_states.get(output.request_id)
            if state is None or output.index in state.stopped:
                continue  # it has ended here, and the core has not read so yet
            touched[output.request_id] = state
            if state.add(output, now, stats):
                processed.stopped.append((output.request_id, output.index))
        # 3. One output for each request, whatever came of its sequences; the last one ends it.
        for state in touched.values():
            request_output = state.make_output(now)
            if request_output is None:
                continue
            if request_output.finished:
                stats.finished_requests.append(state.finished_stats(now))
                del self.request_states[state.request_id]
            if state.queue is None:
                processed.request_outputs.append(request_output)
            else:
                state.queue.put(request_output)
        return processed

    def abort_requests(
        self, request_ids: Iterable[str]
    ) -> list[RequestOutput | PoolingRequestOutput]:
        """Drop requests. Returns their last outputs; unknown ids have none."""
        states = [self.request_states.pop(i) for i in request_ids if i in self.request_states]
        outputs = []
        for state in states:
            state.abort()
            last = state.make_output(time.monotonic())
            assert last is not None, "it has ended"
            outputs.append(last)
        return outputs

    def propagate_error(self, error: Exception, request_ids: Iterable[str]) -> None:
        """Drop requests, and put an error into their queues. Unknown ids are ignored."""
        for request_id in request_ids:
            state = self.request_states.pop(request_id, None)
            if state is not None and state.queue is not None:
                state.queue.put(error)
