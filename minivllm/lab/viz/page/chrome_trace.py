"""A trace for Perfetto (ui.perfetto.dev) and chrome://tracing: their JSON Trace Event Format.

Two processes: "engine" has a slice per step and the counters, "requests" a track per sequence with
its waits, its chunks, and K and V that come or go. An arrow leads over each preemption, from the
last chunk before it to the return. Devices that report their work are processes of their own
(``rank_events``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from minivllm.lab.viz.draw.wording import count
from minivllm.lab.viz.model.flights import read_flights
from minivllm.lab.viz.model.timeline_model import Cell, History, read_history
from minivllm.lab.viz.model.times import Times
from minivllm.lab.viz.page.chrome_events import (
    FIRST_TRACK,
    MICROSECONDS,
    Event,
    make_event,
    make_slice,
    metadata,
)
from minivllm.lab.viz.page.rank_events import rank_events
from minivllm.trace import Trace
from minivllm.trace.groups import group_labels
from minivllm.trace.records import (
    ItemEncoded,
    RequestAdded,
    StepPlanned,
    SwappedOut,
    TransferStarted,
)
from minivllm.trace.state import State
from minivllm.utils.math_utils import cdiv

ENGINE = 1  # process ids; those of ranks follow
REQUESTS = 2
PLANS = FIRST_TRACK + 1  # of the engine, by steps
ENCODER = FIRST_TRACK + 2
COMPUTED = ("prefill", "decode", "verify")  # kinds of cells
RECEIVING, SENDING = "K and V come", "K and V are sent"


def save_chrome_trace(trace: Trace, path: str | Path, clock: str = "seconds") -> None:
    """Write a run for Perfetto: open https://ui.perfetto.dev and drop the file there.

    A track per sequence with its waits and chunks, counters for free blocks (and for those of each
    KV cache group, if there are several), budget and queues, and an arrow from each preemption to
    the return. By seconds also a process for each device that reports its work (of ranks, and with
    asynchronous scheduling), with its plans and operations, and an arrow from each send to where it
    is received. Then a step of the engine has parts: schedule, wait, update; and what is between
    two steps makes text. Steps as a clock have a track of plans if these end in later steps than
    their own.

    Args:
        trace: of the run, such as ``llm.trace``.
        path: of the file, JSON; an existing one is replaced.
        clock: "seconds" as measured (or simulated), or "steps": each lasts a millisecond, which is
            the same on every machine.

    Raises:
        ValueError: for a trace without steps, or another clock.
    """
    Path(path).write_text(json.dumps(chrome_trace(trace, clock)), encoding="utf-8")


def chrome_trace(trace: Trace, clock: str) -> Event:
    """Return the JSON object of a trace; ``save_chrome_trace`` says what the arguments mean."""
    return {
        "traceEvents": list(_Writer(trace, Times(trace, clock)).events()),
        "displayTimeUnit": "ms",
        "otherData": {
            "clock": clock if clock == "seconds" else "steps: one lasts 1 ms",
            "blocks": trace.num_blocks - 1,
            "block_size": trace.block_size,
            "max_num_batched_tokens": trace.max_num_batched_tokens,
        },
    }


class _Writer:
    """Turns a trace into events."""

    def __init__(self, trace: Trace, times: Times):
        self.trace = trace
        self.times = times
        self.history: History = read_history(trace)
        self.tids = {seq_id: index for index, seq_id in enumerate(self.history.rows, FIRST_TRACK)}
        self.arrivals = {r.request_id: times.arrival(r) for r in trace.of(RequestAdded)}
        self.swapped = {(r.seq_id, r.step) for r in trace.of(SwappedOut)}
        self.flights = read_flights(trace)
        self.ended = {f.ended: f.plan for f in self.flights.values() if f.ended is not None}
        self.num_flows = 0
        self.has_items = next(trace.of(ItemEncoded), None) is not None
        self.has_transfers = next(trace.of(TransferStarted), None) is not None

    def events(self) -> Iterator[Event]:
        yield from self._names()
        yield from self._steps()
        yield from self._encoded()
        for seq_id, cells in self.history.rows.items():
            yield from self._sequence(seq_id, cells)
        if self.times.clock == "seconds":  # steps are no measure of what a rank does within one
            yield from rank_events(self.trace, REQUESTS + 1)
        elif self.times.is_overlapped:
            yield metadata(ENGINE, PLANS, "thread_name", name="plans computed")
            for flight in self.flights.values():
                if flight.num_tokens and flight.ended is not None:
                    start, end = self.times.computed(flight.plan)
                    yield self._slice(ENGINE, PLANS, f"plan {flight.plan}", start, end)

    def _names(self) -> Iterator[Event]:
        for pid, name in ((ENGINE, "engine"), (REQUESTS, "requests")):
            yield metadata(pid, 0, "process_name", name=name)
            yield metadata(pid, 0, "process_sort_index", sort_index=pid)
        yield metadata(ENGINE, FIRST_TRACK, "thread_name", name="steps")
        for seq_id, tid in self.tids.items():
            owner = self.history.owners[seq_id]
            name = owner.letter if owner.letter == seq_id else f"{owner.letter} {seq_id}"
            yield metadata(REQUESTS, tid, "thread_name", name=name)
            yield metadata(REQUESTS, tid, "thread_sort_index", sort_index=tid)

    def _steps(self) -> Iterator[Event]:
        """A slice and the counters for every step, and the counters once more at the end."""
        times = self.times
        state = self.trace.beginning()
        for record in self.trace.records:
            state.apply(record)
            if isinstance(record, StepPlanned):
                step = record.step
                start = times.start(record.step)
                tokens = state.num_planned_tokens(step)
                args = {"tokens": tokens, "running": len(state.running)}
                yield self._slice(
                    ENGINE, FIRST_TRACK, f"step {step}", start=start, end=times.end(step), args=args
                )
                if times.planned(step) > start:
                    yield self._slice(ENGINE, FIRST_TRACK, "schedule", start, times.planned(step))
                yield from self._parts(step)
                yield from self._counters(start, state, tokens)
        yield from self._counters(times.end(self.trace.num_steps - 1), state, 0)

    def _encoded(self) -> Iterator[Event]:
        """A slice for each item that is encoded: those of a step share the time of its plan."""
        by_step: dict[int, list[ItemEncoded]] = {}
        for record in self.trace.of(ItemEncoded):
            by_step.setdefault(record.step, []).append(record)
        if by_step:
            yield metadata(ENGINE, ENCODER, "thread_name", name="encoder")
        for step, items in by_step.items():
            start, end = self.times.computed(step)
            each = (end - start) / len(items)
            for index, item in enumerate(items):
                owner = self.history.owners[item.seq_id]
                yield self._slice(
                    ENGINE, ENCODER, f"encode {item.identifier}",
                    start=start + index * each,
                    end=start + (index + 1) * each,
                    args={"step": step, "embeddings": item.num_embeds, "for": owner.letter},
                )  # fmt: skip

    def _parts(self, step: int) -> Iterator[Event]:
        """Parts of a step behind its planning, where the device says when it was done."""
        plan = self.ended.get(step)
        came = None if plan is None else self.times.came(plan)
        if came is None or self.times.clock == "steps":
            return
        since, end = self.times.planned(step), self.times.end(step)
        came = min(max(since, came), end)
        if came > since:
            yield self._slice(ENGINE, FIRST_TRACK, f"wait for plan {plan}", since, came)
        yield self._slice(ENGINE, FIRST_TRACK, f"update from plan {plan}", came, end)
        if step + 1 < self.trace.num_steps and self.times.start(step + 1) > end:
            text = f"text of plan {plan}"
            yield self._slice(ENGINE, FIRST_TRACK, text, end, self.times.start(step + 1))

    def _counters(self, at: float, state: State, num_tokens: int) -> Iterator[Event]:
        values = {
            "free blocks": state.num_free_blocks,
            "token budget used": num_tokens,
            "running": len(state.running),
            "waiting": len(state.waiting),
        }
        if self.swapped:
            values["swapped out"] = len(state.swapped)
        if self.has_transfers:
            values[RECEIVING] = len(state.receiving)
            values[SENDING] = len(state.sending)
        if labels := group_labels(state.groups):
            held = zip(labels, state.num_held_by_group, strict=True)
            values |= {f"blocks: {label.name}": num_blocks for label, num_blocks in held}
        if self.has_items:
            kept = state.items.values()
            values["embeddings kept"] = sum(item.num_embeds for item in kept)
            values["of them needed"] = sum(item.num_embeds for item in kept if item.holders)
        for name, value in values.items():
            yield self._event("C", ENGINE, 0, name, at, args={"value": value})

    def _sequence(self, seq_id: str, cells: dict[int, Cell]) -> Iterator[Event]:
        """The track of one sequence: its lifetime, and in it the waits, chunks and marks."""
        if not cells:  # it came after the last step, or went before the first
            return
        tid = self.tids[seq_id]
        times = self.times
        reason = next((c.finish_reason for c in cells.values() if c.finish_reason), None)
        chunks = [step for step, cell in cells.items() if cell.kind in COMPUTED]
        born = self.arrivals.get(seq_id, times.start(min(cells)))
        ends = [times.end(max(cells)), *(times.computed(step)[1] for step in chunks)]
        end = max([born, *ends])  # one that leaves between two steps may have come after the first
        name = f"{self.history.owners[seq_id].letter} {seq_id}"
        yield self._slice(
            REQUESTS, tid, name, start=born, end=end, args={"finished": reason or "not yet"}
        )
        since = self.arrivals.get(seq_id)  # a fork has nothing to wait for
        why = "waiting"
        before = None  # when its last chunk began
        free = born  # from when on it has no chunk in flight
        for step, cell in sorted(cells.items()):
            if cell.preempted:
                since = max(times.start(step), free)
                why = "swapped out" if (seq_id, step) in self.swapped else "preempted"
            elif cell.kind in (*COMPUTED, "idle"):
                start, until = times.computed(step)
                start, until = max(start, free), max(until, free)  # another may be in flight
                if cell.kind == "idle":
                    start, until = max(times.planned(step), free), max(times.end(step), free)
                yield from self._wait(tid, why, since, start)
                if until > start:
                    yield self._chunk(tid, step, cell, start, until)
                if since is not None and why in ("preempted", "swapped out"):
                    yield from self._arrow(tid, since if before is None else before, start)
                since = None
                before, free = start, until
            elif cell.kind == "sending" and since is None:
                since, why = free, SENDING
            elif since is not None and (why == RECEIVING) != (cell.kind == "receiving"):
                yield from self._wait(tid, why, since, times.start(step))
                since = times.start(step)
                why = RECEIVING if cell.kind == "receiving" else "waiting"
        yield from self._wait(tid, why, since, end)

    def _wait(self, tid: int, why: str, since: float | None, until: float) -> Iterator[Event]:
        if since is not None and until > since:
            yield self._slice(REQUESTS, tid, why, since, until)

    def _arrow(self, tid: int, start: float, end: float) -> Iterator[Event]:
        """From the slice that begins at ``start``, its last before it gave way, to the return."""
        flow = {"cat": "preemption", "id": self.num_flows}
        self.num_flows += 1
        yield self._event("s", REQUESTS, tid, "preemption", start, **flow)
        yield self._event("f", REQUESTS, tid, "preemption", end, **flow, bp="e")

    def _chunk(self, tid: int, step: int, cell: Cell, start: float, end: float) -> Event:
        if cell.kind == "idle":
            return self._slice(
                REQUESTS, tid, "no budget", start=start, end=end, args={"step": step}
            )
        name = "decode" if cell.kind == "decode" else f"prefill {count(cell.num_tokens, 'token')}"
        if cell.kind == "verify":
            name = f"decode with {count(cell.num_tokens - 1, 'draft')}"
        if cell.is_wasted:
            name += ", wasted"
        args = {"step": step, "tokens": cell.num_tokens, "from position": cell.start}
        if not any(group.sliding_window for group in self.trace.groups):
            num_blocks = cdiv(cell.start + cell.num_tokens, self.trace.block_size)
            args["blocks"] = num_blocks * max(1, len(self.trace.groups))
        if cell.kind == "verify":
            args["accepted"] = cell.num_accepted
        return self._slice(REQUESTS, tid, name, start=start, end=end, args=args)

    def _slice(
        self, pid: int, tid: int, name: str, start: float, end: float, args: Event | None = None
    ) -> Event:
        scale = MICROSECONDS[self.times.clock]
        return make_slice(pid, tid, name, start=start * scale, end=end * scale, args=args)

    def _event(self, phase: str, pid: int, tid: int, name: str, at: float, **more) -> Event:
        return make_event(phase, pid, tid, name, at * MICROSECONDS[self.times.clock], **more)
