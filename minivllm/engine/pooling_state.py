"""PoolingRequestState: the output side of a pooling request, which has one output and no tokens.

(vLLM: ``RequestState`` in vllm/v1/engine/output_processor.py does both)
"""

from __future__ import annotations

import torch

from minivllm.engine.core_outputs import EngineCoreOutput
from minivllm.engine.output_collector import OutputQueue
from minivllm.metrics.stats import FinishedRequestStats, IterationStats
from minivllm.outputs import PoolingOutput, PoolingRequestOutput
from minivllm.request import Request


class PoolingRequestState:
    """The output side of one pooling request; the same methods as ``RequestState``.

    Args:
        request: the one that the core gets, too.
        queue: where its output goes; None: to the caller of the engine's step.
    """

    def __init__(self, request: Request, queue: OutputQueue | None):
        self.request_id = request.request_id
        self.prompt_token_ids = request.prompt_token_ids
        self.queue = queue
        self.stopped: set[int] = set()  # no stop string ends it
        self.prompt_positions: dict = {}  # and it has no logprobs
        self._arrival_time = request.arrival_time
        self._last: EngineCoreOutput | None = None
        self._data = torch.empty(0)

    def add(self, output: EngineCoreOutput, now: float, iteration: IterationStats) -> bool:
        """Take the numbers that the core sends with its end. Returns False: it has ended.

        Its prompt is counted. There is no first token, and so no time to it.
        """
        iteration.num_prompt_tokens += len(self.prompt_token_ids)
        iteration.num_cached_tokens += output.num_cached_tokens or 0
        self._last = output
        self._data = torch.from_numpy(output.pooling_output)
        return False

    def finished_stats(self, now: float) -> FinishedRequestStats:
        """Make the FinishedRequestStats: all of its time is prefill."""
        last = self._last
        assert last is not None, "it has finished"
        begun = last.first_scheduled_time or now
        return FinishedRequestStats(
            finish_reason=last.finish_reason or "stop",
            e2e_latency=now - self._arrival_time,
            queued_time=begun - self._arrival_time,
            prefill_time=now - begun,
            decode_time=0.0,
            num_prompt_tokens=len(self.prompt_token_ids),
            num_cached_tokens=last.num_cached_tokens or 0,
            num_generation_tokens=0,
            max_num_generation_tokens=0,
            num_preemptions=last.num_preemptions,
            params_n=1,
            params_max_tokens=None,
        )

    def abort(self) -> None:
        """Let the request end with no numbers."""

    def make_output(self, now: float) -> PoolingRequestOutput[PoolingOutput]:
        """The request's only output, at its end."""
        hit = 0 if self._last is None else self._last.num_cached_tokens
        return PoolingRequestOutput(
            self.request_id,
            PoolingOutput(self._data),
            list(self.prompt_token_ids),
            num_cached_tokens=hit or 0,
            finished=True,
        )
