"""verify: give a recorded run of vLLM to our scheduler, and compare every decision."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, fields

from minivllm.lab.viz.figures.block_grid import block_grid
from minivllm.logger import silenced
from minivllm.trace import Trace
from minivllm.trace.groups import group_labels
from minivllm.trace.records import (
    BlockForgotten,
    BlocksAllocated,
    BlocksCached,
    BlocksFreed,
    BlocksShared,
    BlocksSkipped,
    Finished,
    Preempted,
    Record,
    Sampled,
    Scheduled,
    Verified,
)
from minivllm.trace.state import State
from minivllm.xray.format import XRay
from minivllm.xray.recorded_steps import recorded_steps
from minivllm.xray.replay import check_records
from minivllm.xray.replay_settings import check_whole
from minivllm.xray.rerun import Rerun

_COMPARED = (Preempted, Scheduled, BlocksShared, BlocksSkipped, BlocksAllocated, BlocksCached,
             BlockForgotten, BlocksFreed, Verified, Sampled, Finished)  # fmt: skip
_NOT_COMPARED = {"step", "block_hashes", "reason"}  # hash functions and words differ


@dataclass
class Difference:
    """The first difference of two runs: records of one kind, in a step and what came before it."""

    step: int
    kind: str
    vllm: list[tuple]
    ours: list[tuple]


@dataclass
class Verification:
    """Result of ``verify``; true if all decisions are equal."""

    num_steps: int  # that are equal
    difference: Difference | None
    vllm_trace: Trace
    our_trace: Trace

    def __bool__(self) -> bool:
        return self.difference is None

    def __str__(self) -> str:
        if self.difference is None:
            return f"all {self.num_steps} steps are equal: plans, block ids, preemptions, ends"
        found = self.difference
        lines = [f"equal up to step {found.step}, which differs in {found.kind}:"]
        for name, values, trace in (
            ("vLLM", found.vllm, self.vllm_trace), ("here", found.ours, self.our_trace),
        ):  # fmt: skip
            lines += [f"  {name}: {value}" for value in values] or [f"  {name}: none"]
            lines.append(_described(name, trace.state_at(found.step)))
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The sentence; with a difference both pools, too."""
        text = f"<pre>{self}</pre>"
        if self.difference is None:
            return text
        step = self.difference.step
        pools = [("vLLM", self.vllm_trace), ("here", self.our_trace)]
        return text + "".join(block_grid(t, step, title=name).svg for name, t in pools)


def verify(xray: XRay) -> Verification:
    """Compare a run of vLLM, step by step, with what our scheduler decides for the same arrivals.

    Requests arrive before the same steps, and get the tokens and the drafts that were recorded.
    With asynchronous scheduling plans are made and end in the same steps as there. Prompts without
    text have made-up tokens, with the same blocks in common.

    Raises:
        ValueError: if the run cannot be given to our scheduler: its beginning was dropped, it has
            adapters, or drafts with asynchronous scheduling, or contradicts itself.
    """
    check_whole(xray)
    check_records(xray)
    run = Rerun(xray)
    trace = run.scheduler.trace
    assert trace is not None
    num_steps = 0
    for step in recorded_steps(xray.trace):
        mark = len(trace.records)
        with silenced("minivllm.scheduling.preemption"):
            run.step(step)
        theirs, mine = _by_kind([*step.before, *step.records]), _by_kind(trace.records[mark:])
        for kind in (kind.__name__ for kind in _COMPARED):
            if theirs[kind] != mine[kind]:
                found = Difference(step.number, kind, theirs[kind], ours=mine[kind])
                return Verification(num_steps, found, xray.trace, our_trace=trace)
        num_steps += 1
    return Verification(num_steps, None, xray.trace, our_trace=trace)


def _by_kind(records: Iterable[Record]) -> dict[str, list[tuple]]:
    """Values of the records that are compared, by the name of their kind."""
    found: dict[str, list[tuple]] = defaultdict(list)
    for record in records:
        if isinstance(record, _COMPARED):
            names = [f.name for f in fields(record) if f.name not in _NOT_COMPARED]
            found[type(record).__name__].append(tuple(getattr(record, name) for name in names))
    found[BlockForgotten.__name__].sort()  # all at once
    return found


def _described(name: str, state: State) -> str:
    tables = "; ".join(f"{s}: {_tables_of(state, s)}" for s in state.running) or "none"
    return (
        f"  {name} after the step: running {state.running}, waiting {state.waiting}, "
        f"{state.num_free_blocks} free blocks, tables {tables}"
    )


def _tables_of(state: State, seq_id: str) -> str:
    """Block ids of a sequence; of several KV cache groups, each with its name."""
    tables = state.sequences[seq_id].tables
    if not (labels := group_labels(state.groups)):
        return str(tables[0])
    return ", ".join(f"{a.name} {table}" for a, table in zip(labels, tables, strict=False))
