"""Trace: the engine's event log. One small frozen record per state change.

A figure of the engine is drawn from its Trace, never from live objects. The engine writes it only
if asked to (``LLM(trace=True)``); otherwise each place costs one ``is not None``.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, TypeVar

from minivllm.trace.groups import TableGroup
from minivllm.trace.records import (
    OWN_PLAN,
    Record,
    RequestAdded,
    StepEnded,
    StepFailed,
    StepPlanned,
    StepStarted,
)
from minivllm.trace.state import State
from minivllm.utils.validation import check

R = TypeVar("R", bound=Record)


class Trace:
    """The records of one engine, in order, and the few constants needed to read them.

    Args:
        num_blocks: blocks in the pool, the null block included.
        block_size: positions per block.
        max_num_batched_tokens: the token budget of a step.
        clock: seconds from any beginning; a simulation has its own.
        beginning: the state behind steps that are not in the trace; None: it has all from step 0.
        max_num_encoder_input_tokens: the encoder budget of a step; 0 of a text model.
        encoder_cache_size: embeddings that are kept.
        groups: KV cache groups; () if there is one alone, with blocks of ``block_size``.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        max_num_batched_tokens: int,
        clock: Callable[[], float] = time.perf_counter,
        beginning: State | None = None,
        max_num_encoder_input_tokens: int = 0,
        encoder_cache_size: int = 0,
        groups: Iterable[TableGroup] = (),
    ):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_num_encoder_input_tokens = max_num_encoder_input_tokens
        self.encoder_cache_size = encoder_cache_size
        self.records: list[Record] = []
        # before the first record
        self.groups = tuple(groups)
        self._beginning = beginning or State(-1, num_blocks, block_size, groups=self.groups)
        self.step = self._beginning.step
        self.clock = clock
        self._start = clock()
        self._plans: deque[int] = deque()  # steps whose plans are in flight
        self._open_step: int | None = None  # number of records before the step that is running

    # -- written by the engine ---------------------------------------------------------------

    def record(self, kind: type[Record], *values: Any, **fields: Any) -> None:
        """Append a record of this kind, at the current step."""
        self.records.append(kind(self.step, *values, **fields))

    def now(self) -> float:
        """Seconds since the trace began."""
        return self.clock() - self._start

    def start_step(self) -> None:
        self._open_step = len(self.records)
        self.step += 1
        self.record(StepStarted, self.now())

    def fail_step(self, waiting: Iterable[str]) -> None:
        """Remove the records of a step that failed, and record what it has left.

        Args:
            waiting: ids of all requests, in the order in which they wait now.
        """
        if self._open_step is not None:
            del self.records[self._open_step :]
            self._open_step = None
            self.step -= 1
        self._plans.clear()
        self.record(StepFailed, tuple(waiting))

    @contextmanager
    def step_reopened(self) -> Iterator[None]:
        """Context manager: records made inside belong to the step that has just ended.

        Where records have followed its end, or the trace was emptied, they come between two steps.
        """
        ended = []
        if self.records and isinstance(self.records[-1], StepEnded):
            ended.append(self.records.pop())
        yield
        self.records += ended

    def plan_step(self) -> None:
        self._plans.append(self.step)
        self.record(StepPlanned, self.now())

    @property
    def oldest_plan(self) -> int:
        """The step whose plan is the next one to end."""
        return self._plans[0]

    def end_step(self) -> None:
        """Record that the oldest plan has ended."""
        plan = self._plans.popleft()
        self._open_step = None
        self.record(StepEnded, self.now(), OWN_PLAN if plan == self.step else plan)

    def start_step_without_plan(self) -> None:
        """Start a step that only ends an earlier one's plan."""
        self.start_step()
        self.record(StepPlanned, self.now())

    def end_step_without_output(self) -> None:
        """End a step whose plan is in flight, while no other has ended."""
        self._open_step = None
        self.record(StepEnded, self.now(), None)

    def take(self) -> list[Record]:
        """Take all records out of the trace: those since the last call.

        Between steps only. Afterwards only the caller has the past: ``state_at`` and the
        figures of a whole run do not.
        """
        records = self.records
        self.records = []
        return records

    def forget_before(self, step: int) -> None:
        """Forget the records from before a step, for an engine that runs for days.

        Between steps only. What they have led to is kept, as the state in which the others begin;
        requests that are over are not. Figures begin there, too; pages, files
        for Perfetto and clocks other than steps are for runs that are whole.

        Args:
            step: the first one to be kept; if it is the first one that is there, nothing changes.

        Raises:
            ValueError: for a step that has not happened.
        """
        check(step <= self.step, "step", step, f"at most {self.step}, the last one")
        if step <= self.first_step:
            return
        index = 0
        while not (isinstance(record := self.records[index], StepStarted) and record.step == step):
            self._beginning.apply(record)
            index += 1
        del self.records[:index]
        self._beginning.step = step - 1
        self._beginning.forget_finished()

    def forget_all(self) -> set[str]:
        """Forget all records that are there, as ``forget_before`` does. Between steps only.

        Returns the ids of requests that are not over.
        """
        for record in self.take():
            self._beginning.apply(record)
        self._beginning.step = self.step
        return self._beginning.forget_finished()

    def clear(self) -> None:
        """Delete all records. Only between runs: no sequence may be alive.

        Raises:
            RuntimeError: if a sequence is still waiting or running.
        """
        state = self.state_at(self.step) if self.records else None
        if state and (state.running or state.waiting):
            alive = ", ".join(state.running + state.waiting)
            raise RuntimeError(f"the trace cannot be cleared while {alive} are alive.")
        if state is not None:
            self._beginning = State(-1, self.num_blocks, self.block_size, groups=self.groups)
            self._beginning.free_queue = OrderedDict.fromkeys(state.free_queue)
            self._beginning.items = state.items
            self._beginning.evictable_items = state.evictable_items
        self.records.clear()
        self.step = -1
        self._start = self.clock()

    # -- read by everyone else ---------------------------------------------------------------

    @property
    def num_steps(self) -> int:
        return self.step + 1

    @property
    def first_step(self) -> int:
        """The first one whose records are there: 0 if none have been forgotten."""
        return self._beginning.step + 1

    @property
    def request_ids(self) -> list[str]:
        """Request ids in order of arrival."""
        return [r.request_id for r in self.records if isinstance(r, RequestAdded)]

    def of(self, *kinds: type[R]) -> Iterator[R]:
        """The records of these kinds, in order."""
        return (r for r in self.records if isinstance(r, kinds))

    def at(self, step: int) -> list[Record]:
        """The records of one step, in order."""
        return [r for r in self.records if r.step == step]

    def beginning(self) -> State:
        """The state before the first record. What was cached before is not known."""
        return deepcopy(self._beginning)

    def state_at(self, step: int, after: str = "update") -> State:
        """The state in ``step``, rebuilt by replaying the records.

        Args:
            step: counted from 0; -1 is before the first step (``first_step - 1``, if steps have
                been forgotten).
            after: "schedule" is what the forward pass of this step sees; "update" is the end of
                the step, when tokens are appended and finished sequences have freed their blocks.

        Raises:
            ValueError: for a step that has not happened, or another moment.
        """
        state = self.beginning()
        state.step = step
        for record in self.until(step, after):
            state.apply(record)
        return state

    def until(self, step: int, after: str = "update") -> Iterator[Record]:
        """The records up to a moment, in order. Arguments and errors are those of ``state_at``."""
        before = self.first_step - 1
        last = self.num_steps - 1
        if not before <= step <= last:
            raise ValueError(
                f"step must be between {before} and {last}, the last one, got {step!r}."
            )
        if after not in ("schedule", "update"):
            raise ValueError(f"after must be 'schedule' or 'update', got {after!r}.")
        for record in self.records:
            if step == before and isinstance(record, StepStarted):
                return
            yield record
            if record.step == step and isinstance(record, _LAST_RECORD[after]):
                return

    def __repr__(self) -> str:
        return (
            f"Trace({self.num_steps} steps, {len(self.request_ids)} requests, "
            f"{len(self.records)} records, {self.num_blocks} blocks of {self.block_size})"
        )


_LAST_RECORD = {"schedule": StepPlanned, "update": StepEnded}
