"""Ranks' events for Perfetto: a process for each, with its plans and what it exchanged in them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from minivllm.lab.viz.page.chrome_events import (
    FIRST_TRACK,
    MICROSECONDS,
    Event,
    make_event,
    make_slice,
    metadata,
)
from minivllm.trace import Trace
from minivllm.trace.records import Communicated, RankWorked

MICRO = MICROSECONDS["seconds"]


def rank_events(trace: Trace, first_pid: int) -> Iterator[Event]:
    """Events of all ranks of a trace; none if it has no records of them.

    Args:
        trace: of the run.
        first_pid: process id of rank 0; the others' follow.
    """
    tid = FIRST_TRACK
    ranks = sorted({record.rank for record in trace.of(RankWorked)})
    for rank in ranks:
        pid = first_pid + rank
        name = "device" if len(ranks) == 1 else f"rank {rank}"
        yield metadata(pid, 0, "process_name", name=name)
        yield metadata(pid, 0, "process_sort_index", sort_index=pid)
        yield metadata(pid, tid, "thread_name", name="plans")
    for work in trace.of(RankWorked):
        name = f"plan {work.plan}"
        yield make_slice(first_pid + work.rank, tid, name, work.start * MICRO, work.end * MICRO)
    for one in trace.of(Communicated):
        args = {"plan": one.plan, "group": one.group, "bytes": one.num_bytes}
        start, end = one.start * MICRO, one.end * MICRO
        yield make_slice(first_pid + one.rank, tid, one.op, start=start, end=end, args=args)
    for number, (sent, received) in enumerate(_transfers(trace)):
        flow = {"cat": "send", "id": number}
        start = sent.start * MICRO
        end = max(sent.start, received.start) * MICRO  # within the slice of the receiving
        yield make_event("s", first_pid + sent.rank, tid, "send", start, **flow)
        yield make_event("f", first_pid + received.rank, tid, "send", end, **flow, bp="e")


def _transfers(trace: Trace) -> Iterator[tuple[Communicated, Communicated]]:
    """Each sending with its receiving: the ranks of a stage send in order to those of the next."""
    by_plan: dict[int, dict[str, list[Communicated]]] = defaultdict(lambda: defaultdict(list))
    for record in trace.of(Communicated):
        by_plan[record.plan][record.op].append(record)
    for ops in by_plan.values():
        sent, received = (sorted(ops[op], key=lambda one: one.rank) for op in ("send", "recv"))
        yield from zip(sent, received, strict=True)
