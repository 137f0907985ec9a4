"""record_stage: what the ranks of a stage did for a plan, in simulated time, as a trace has it."""

from __future__ import annotations

from functools import partial
from typing import Any

from minivllm.trace import Trace
from minivllm.trace.records import Communicated, RankWorked


def record_stage(
    trace: Trace, stages: list[Any], index: int, num_tokens: int, start: float, end: float
) -> None:
    """Record the work of each rank of a stage for the oldest plan in flight.

    The all-reduces are drawn at equal distances: two in a layer, at the ends of its halves. The
    all-gather of the logits has neither a cost nor a record here.

    Args:
        trace: of the replica.
        stages: of the pipeline, each a ``StageCost``; or one device alone, a ``CostModel``.
        index: of this stage.
        num_tokens: of the plan.
        start, end: seconds between which the stage computes.
    """
    stage = stages[index]
    plan = trace.oldest_plan
    slot = (end - start) / max(1, stage.num_all_reduces)
    for rank in range(index * stage.num_ranks, (index + 1) * stage.num_ranks):
        trace.record(RankWorked, rank, plan, start, end)
        exchange = partial(_exchange, trace, rank, plan)
        if index > 0:
            arrival = start - stages[index - 1].send_seconds(num_tokens)
            exchange(arrival, start, "pp", op="recv", num_bytes=stage.sent_bytes(num_tokens))
        for number in range(1, stage.num_all_reduces + 1):
            done = start + number * slot
            begin = done - stage.all_reduce_seconds(num_tokens)
            num_bytes = stage.all_reduce_bytes(num_tokens)
            exchange(begin, done, "tp", op="all_reduce", num_bytes=num_bytes)
        if index < len(stages) - 1:
            arrival = end + stage.send_seconds(num_tokens)
            exchange(end, arrival, "pp", op="send", num_bytes=stage.sent_bytes(num_tokens))


def _exchange(
    trace: Trace, rank: int, plan: int, start: float, end: float, group: str, **what: Any
) -> None:
    """Record that a rank took part in an operation of a group."""
    trace.records.append(
        Communicated(trace.step, rank, plan, start=start, end=end, group=group, **what)
    )
