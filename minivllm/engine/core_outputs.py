"""EngineCoreOutputs: the output of the engine core, a message of ids and numbers without text.

(vLLM: vllm/v1/engine/__init__.py)
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from minivllm.metrics.stats import SchedulerStats
from minivllm.request import FINISH_REASONS, Sequence
from minivllm.scheduling.output import ModelRunnerOutput, TokenLogprobs
from minivllm.trace.records import Record


@dataclass(slots=True)
class EngineCoreOutput:
    """The new tokens of sample ``index`` of a request, or all of beam ``index``; or its numbers."""

    request_id: str
    index: int
    new_token_ids: list[int]  # none if nothing could be sampled; of a beam all of its output
    new_logprobs: list[TokenLogprobs] | None = None  # one for each new token, if asked for
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    num_cached_tokens: int | None = None  # the hit of the request's first scheduling
    num_external_computed_tokens: int = 0  # those of it that came from another engine
    first_scheduled_time: float | None = None  # seconds of ``time.monotonic()``
    num_preemptions: int = 0  # of the request so far
    cumulative_logprob: float | None = None  # of a beam, whose past may be another's
    pooling_output: Any = None  # of a pooling request: a float32 array of numpy
    kv_transfer_params: dict[str, Any] | None = None  # for another engine, which goes on


@dataclass(slots=True)
class EngineCoreOutputs:
    """Output of a step, and what else the core's loop answers in the same turn."""

    outputs: list[EngineCoreOutput] = field(default_factory=list)  # of sequences with a new token
    # by request id and position: of prompt tokens that this step has come to
    prompt_logprobs: dict[str, dict[int, TokenLogprobs]] = field(default_factory=dict)
    timestamp: float | None = None  # end of the step, ``time.monotonic()``; None without a step
    # The rest is set by the loop, see ``EngineCoreLoop``, and by ``Replicas``.
    scheduler_stats: SchedulerStats | None = None
    aborted_req_ids: list[str] = field(default_factory=list)
    stopped_req_ids: list[str] = field(default_factory=list)  # read from "stop" messages
    refused: list[tuple[str, Exception]] = field(default_factory=list)  # by request id
    utility_outputs: list[tuple[int, Any]] = field(default_factory=list)  # results, by call number
    records: list[Record] = field(default_factory=list)  # of the trace, if it is followed
    finished_requests: list[str] = field(default_factory=list)  # ids of those that have ended
    engine_index: int = 0  # of several replicas


def collect(updated: list[Sequence], output: ModelRunnerOutput) -> EngineCoreOutputs:
    """Make the outputs of the sequences that got a token, or have come to their end.

    Args:
        updated: by ``Scheduler.update_from_output``; the beams of a request in order of rank.
        output: of the same step.
    """
    rank: dict[str, int] = {}  # by request id: beams so far
    outputs = []
    pooled = output.pooler_output
    for seq in updated:
        request = seq.request
        # 1. One sequence's new tokens, and how its request fares.
        found = EngineCoreOutput(
            request.request_id,
            seq.index,
            output.sampled_token_ids.get(seq.seq_id, []),
            new_logprobs=output.logprobs.get(seq.seq_id),
            finish_reason=FINISH_REASONS.get(seq.status),
            stop_reason=seq.stop_reason,
            num_cached_tokens=request.num_cached_tokens,
            num_external_computed_tokens=request.num_external_computed_tokens,
            first_scheduled_time=request.metrics.first_scheduled_time,
            num_preemptions=request.num_preemptions,
        )
        # 2. A beam has no new tokens: it may have taken another one's past.
        if request.beam_params is not None:
            found.index = rank.get(request.request_id, -1) + 1
            rank[request.request_id] = found.index
            found.new_token_ids = seq.output_token_ids
            found.new_logprobs = None
            found.cumulative_logprob = seq.cumulative_logprob
        if request.kv_transfer_answer is not None:
            found.kv_transfer_params = request.kv_transfer_answer
        if pooled:
            found.pooling_output = pooled[seq.seq_id]
        outputs.append(found)
    return EngineCoreOutputs(outputs, output.prompt_logprobs, time.monotonic())
