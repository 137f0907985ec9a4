"""trace_request, trace_schedule, trace_ranks: what the scheduler hears of, for the trace."""

from __future__ import annotations

import time
from collections.abc import Iterable

from minivllm.request import Request, Sequence
from minivllm.scheduling.output import ModelRunnerOutput, SchedulerOutput
from minivllm.trace import Trace
from minivllm.trace.records import Communicated, RankWorked, RequestAdded, Scheduled


def trace_request(trace: Trace | None, request: Request, index: int) -> None:
    """Record a request that joined the waiting queue at this index; without a trace nothing."""
    if trace is None:
        return
    prompt = tuple(request.prompt_token_ids)
    name = None if request.lora is None else request.lora.lora_name
    places = [(feature.identifier, feature.mm_position) for feature in request.mm_features]
    items = tuple((identifier, place.offset, place.length) for identifier, place in places)
    trace.record(
        RequestAdded, request.request_id, prompt, index,
        time=trace.now(), lora_name=name, mm_items=items,
    )  # fmt: skip


def trace_schedule(trace: Trace, running: Iterable[Sequence], output: SchedulerOutput) -> None:
    """Record how many tokens each sequence computes, in order of admission, and the plan's end."""
    kinds = {data.seq_id: "new" for data in output.scheduled_new_reqs}
    kinds |= dict.fromkeys(output.resumed_req_ids, "resumed")
    for seq in running:
        num_new = output.num_scheduled_tokens.get(seq.seq_id, 0)
        kind = kinds.get(seq.seq_id, "running")
        if kind == "new" and seq.request.num_preemptions:  # computed again after a failed step
            kind = "resumed"
        if num_new > 0 or kind == "resumed":
            computed = seq.num_computed_tokens
            samples = computed + num_new >= seq.num_tokens + seq.num_output_placeholders
            trace.record(
                Scheduled, seq.seq_id, kind,
                num_computed_tokens=computed, num_tokens=num_new, samples=samples,
            )  # fmt: skip
    trace.plan_step()


def trace_ranks(trace: Trace, output: ModelRunnerOutput) -> None:
    """Record what each rank did for the oldest plan in flight."""
    if not output.rank_work:
        return
    plan = trace.oldest_plan
    shift = trace.now() - time.time()  # ranks have the wall clock, a trace its own
    for work in output.rank_work:
        trace.record(RankWorked, work.rank, plan, start=work.start + shift, end=work.end + shift)
        for operation in work.operations:
            trace.record(
                Communicated, work.rank, plan,
                start=operation.start + shift, end=operation.end + shift,
                group=operation.group, op=operation.op, num_bytes=operation.num_bytes,
            )  # fmt: skip
