"""prefix_hits: what each request of a trace found in the prefix cache when it first came."""

from __future__ import annotations

from minivllm.trace import Trace
from minivllm.trace.records import Scheduled


def prefix_hits(trace: Trace) -> dict[str, int]:
    """Number of cached tokens of each request when it was first admitted, by request id."""
    new = (record for record in trace.of(Scheduled) if record.kind == "new")
    return {record.seq_id: record.num_computed_tokens for record in new}
