"""LiveRun: a run that still goes on, read as it goes, with only what can still be seen of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace

from minivllm.lab.viz.draw.palette import Arrivals, Owner
from minivllm.lab.viz.model.frames import StepFrame, StepReader, queues_of
from minivllm.lab.viz.model.timeline_model import History, TimelineWindow
from minivllm.trace.groups import TableGroup
from minivllm.trace.records import (
    Record,
    RequestAdded,
    Scheduled,
    StepEnded,
    StepPlanned,
    StepStarted,
)
from minivllm.trace.state import State

NUM_STEPS = 40  # of the past that are remembered for the timeline


class LiveRun:
    """State of a run, kept up to date as a trace's records come.

    Args:
        num_blocks: blocks in the pool, the null block included.
        block_size: positions per block.
        max_num_batched_tokens: the token budget of a step.
        decode: turns a token id into text, to name the tokens that are drawn; None: by their ids.
        called: what is beside a letter in the timeline, made from a sequence's id.
        groups: KV cache groups; () if there is one alone.
        encoder_limits: the encoder budget of a step and the encoder cache's size, in embeddings.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        max_num_batched_tokens: int,
        decode: Callable[[int], str] | None = None,
        called: Callable[[str], str] = str,
        encoder_limits: tuple[int, int] = (0, 0),
        groups: tuple[TableGroup, ...] = (),
    ):
        self.decode = decode
        self._called = called
        self.state = State(-1, num_blocks, block_size, groups=groups)
        self.step = -1  # the last one that has begun
        self.num_prompt_tokens = 0  # asked of the prefix cache
        self.num_cached_tokens = 0  # and found there
        self._arrivals = Arrivals()
        self._history = History(
            {}, num_blocks - 1, max_num_batched_tokens, encoder_limits=encoder_limits
        )
        self._reader = StepReader(self.state, self._arrivals.owners, decode)

    def begin(self, state: State) -> None:
        """Begin with a state that earlier steps have led to, before the first record."""
        vars(self.state).update(vars(deepcopy(state)))  # the same object: others look at it
        self.step = state.step
        for seq in state.sequences.values():
            prompt = tuple(seq.token_ids[: seq.num_prompt_tokens])
            self._arrivals.note(RequestAdded(state.step, seq.request_id, prompt, 0))

    @property
    def owners(self) -> dict[str, Owner]:
        """Owners that are remembered, in order of arrival."""
        return self._arrivals.in_order()

    def update(self, records: Sequence[Record]) -> None:
        """Take what has come since: any number of whole steps, and what happened between them.

        Only the last of them is told in words.
        """
        self._forget()
        told_from = _last_step(records)
        for index, record in enumerate(records):
            self._arrivals.note(record)
            self._history.note(self.state, record)
            if isinstance(record, StepStarted):
                self.step = record.step
            elif isinstance(record, Scheduled) and record.kind == "new":
                self.num_prompt_tokens += self.state.sequences[record.seq_id].num_prompt_tokens
                self.num_cached_tokens += record.num_computed_tokens
            if index < told_from:
                self.state.apply(record)
            else:
                self._reader.read(record)
            if isinstance(record, StepPlanned):
                self._history.note_plan(self.state, record.step)

    def frame(self) -> StepFrame:
        """The last step in words, with what has happened since, and the queues as they are now.

        Blocks that it has freed are free; ``num_scheduled`` is what it has computed. Of a sequence
        with plans in flight it is what is in that of the last step.
        """
        told = StepFrame(-1, "", "No step yet.", result="", rows=(), **queues_of(self.state))
        if self._reader.frame is not None:
            told = self._reader.frame_so_far()
        began = {row.owner.seq_id: row.num_computed for row in told.rows}
        rows = []
        for seq_id, owner in self.owners.items():
            seq = self.state.sequences.get(seq_id)
            if seq is not None and any(seq.tables):
                computed = seq.num_computed_tokens
                before = min(began.get(seq_id, computed), computed)
                num_now = sum(number for plan, number in seq.in_flight if plan == self.step)
                num_in_flight = seq.num_scheduled_tokens - num_now
                if seq.in_flight:
                    before = computed
                else:
                    num_now = computed - before
                rows += self._reader.rows_of(owner, before, num_now, num_in_flight)
        return StepFrame(
            self.step,
            told.before,
            told.plan,
            result=told.result,
            rows=tuple(rows),
            **queues_of(self.state),
        )

    def window(self) -> TimelineWindow | None:
        """The last steps; None before the first."""
        if not self._history.steps:
            return None
        self._history.owners = {
            seq_id: replace(owner, seq_id=self._called(seq_id))
            for seq_id, owner in self.owners.items()
        }
        first = max(min(self._history.steps), self.step - NUM_STEPS + 1)
        return TimelineWindow.of(self._history, first, self.step)

    def _forget(self) -> None:
        """Sequences of requests that are over, or not in the window any more."""
        self._history.forget_before(self.step - NUM_STEPS + 1)
        alive = self.state.forget_finished()
        seen = {self._arrivals.request_of(seq_id) for seq_id in self._history.rows}
        for request_id in self._arrivals.request_ids:
            if request_id not in alive and request_id not in seen:
                self._arrivals.forget(request_id)


def _last_step(records: Sequence[Record]) -> int:
    """Index of the last step's first record: behind the end of the step before."""
    starts = [i for i, record in enumerate(records) if isinstance(record, StepStarted)]
    ends = [i for i, record in enumerate(records) if isinstance(record, StepEnded)]
    return max((end + 1 for end in ends if starts and end < starts[-1]), default=0)
