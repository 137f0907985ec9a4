"""trace_request, trace_schedule: write a new request and a step's plan to the trace."""

from __future__ import annotations

from collections.abc import Iterable

from minivllm.request import Request, Sequence
from minivllm.scheduling.output import SchedulerOutput
from minivllm.trace import Trace
from minivllm.trace.records import RequestAdded, Scheduled


def trace_request(trace: Trace | None, request: Request, index: int) -> None:
    """Record a request that joined the waiting queue at this index; without a trace nothing."""
    if trace is None:
        return
    prompt, lora = tuple(request.prompt_token_ids), request.lora
    name = None if lora is None else lora.lora_name
    trace.record(RequestAdded, request.request_id, prompt, index, trace.now(), name)


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
            samples = computed + num_new >= seq.num_tokens
            trace.record(Scheduled, seq.seq_id, kind, computed, num_new, samples)
    trace.plan_step()
