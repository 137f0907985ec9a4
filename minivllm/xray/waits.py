"""Waits and stalls of a recorded run, each with its cause, read off the state at each step.

(notebook 26)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from minivllm.lab.viz.model.narration import WAITS_FOR
from minivllm.trace import Trace
from minivllm.trace.records import (
    Finished,
    Preempted,
    Record,
    RequestAdded,
    RequestSkipped,
    Sampled,
    Scheduled,
    StepEnded,
    StepPlanned,
    StepStarted,
)
from minivllm.trace.state import State
from minivllm.xray.replay import apply_record, check_record
from minivllm.xray.room import Room
from minivllm.xray.stalls import BETWEEN, IN_STEP, STEP, StepRow, TokenTimes

BLOCKS = "blocks"
BUDGET = "budget"
SEQS = "max_num_seqs"
UNKNOWN = "unknown"
PREEMPTED, RESET = "preempted for blocks", "preempted by a reset of the cache"
_LONG_SHARE = 0.5  # of the budget, or of a step: a prompt that takes so much is named as the cause
_FORGET_EVERY = 256  # steps


@dataclass
class Wait:
    """A request in the waiting queue, before its first plan or after a preemption."""

    request_id: str
    since: float  # seconds
    after_preemption: bool
    until: float | None = None  # None: it waits at the end
    causes: Counter = field(default_factory=Counter)  # steps in which it was left there, by cause
    seconds: Counter = field(default_factory=Counter)  # by cause
    _current: str = BETWEEN  # the cause since the last plan
    _told: float | None = None  # until then its seconds are counted

    def note(self, cause: str, now: float) -> None:
        """A plan leaves it in the queue, for this cause."""
        self.spend(now)
        self.causes[cause] += 1
        self._current = cause

    def spend(self, now: float) -> None:
        """Count the seconds up to now."""
        told = self.since if self._told is None else self._told
        self.seconds[self._current] += max(0.0, now - told)
        self._told = now

    @property
    def cause(self) -> str:
        """The one that took most of the time."""
        if not self.causes:
            return UNKNOWN if self.until is None else BETWEEN
        known = {*self.causes, *self.seconds}
        return max(known, key=lambda cause: (self.seconds[cause], self.causes[cause]))


class Walk:
    """One pass over the records of a run, which collects all that the report needs.

    Args:
        trace: the run.
        max_num_seqs: its limit of sequences that run at once.
        chunks: whether prompts are split.
        settings: those of the X-ray's header that say how many blocks must stay free.

    Raises:
        ValueError: for a record that does not fit those before it.
    """

    def __init__(
        self,
        trace: Trace,
        max_num_seqs: int,
        chunks: bool = True,
        settings: Mapping[str, Any] | None = None,
    ):
        self.trace = trace
        self.max_num_seqs = max_num_seqs
        self.chunks = chunks
        self.state: State = trace.beginning()
        self.rows: list[StepRow] = []
        self.waits: list[Wait] = []
        self.arrivals: dict[str, float] = {}
        self.prompts: dict[str, int] = {}  # their lengths
        self.ends: dict[str, float] = {}
        self.num_dropped_tokens = self.num_recomputed_tokens = 0
        self.num_hit_tokens = self.num_asked_tokens = 0
        self._open: dict[str, Wait] = {}
        self._tokens = TokenTimes()
        self._room = Room(self.state, settings or {})
        self._reached: dict[str, int] = {}  # tokens computed before a preemption
        self._step: list[Record] = []
        self._skipped: dict[str, str] = {}
        self._number = -1
        self._is_planning = False
        self._has_preempted = False
        self._now = self._start = self._planned = 0.0
        first = next((r.time for r in trace.records if isinstance(r, StepStarted)), 0.0)
        for request_id in self.state.waiting:  # since when is not known
            self._wait(request_id, first, after_preemption=False)
        for record in trace.records:
            self._read(record)
        for wait in self._open.values():
            wait.spend(self._now)
        self._tokens.acquit_prompts(self.rows)
        self.stalls = self._tokens.stalls
        self.first_tokens = self._tokens.first

    def _read(self, record: Record) -> None:
        check_record(self.state, record)
        match record:
            case RequestAdded():
                self._now = record.time
                self.arrivals[record.request_id] = record.time
                self.prompts[record.request_id] = len(record.prompt_token_ids)
                self._wait(record.request_id, record.time, after_preemption=False)
            case StepStarted():
                self._now = record.time
                self._start = record.time
                self._number = record.step
                self._step = []
                self._skipped = {}
                self._is_planning = True
                self._has_preempted = False
            case RequestSkipped():
                self._skip(record)
            case Preempted():
                self._preempt(record)
            case Scheduled():
                self._count(record)
            case Finished():
                self._finish(record.seq_id)
        apply_record(self.state, record)
        self._step.append(record)
        match record:
            case StepPlanned():
                self._planned = record.time
                self._is_planning = False
                self._explain()
            case StepEnded():
                self._end_step(record.time)

    def _wait(self, request_id: str, since: float, after_preemption: bool) -> None:
        wait = self._open[request_id] = Wait(request_id, since, after_preemption)
        self.waits.append(wait)

    def _close(self, request_id: str) -> None:
        if (wait := self._open.pop(request_id, None)) is not None:
            wait.spend(self._now)
            wait.until = self._now

    def _skip(self, record: RequestSkipped) -> None:
        """Note why a request was stepped over: by this plan, or by empty ones since the last."""
        cause = WAITS_FOR.get(record.reason, UNKNOWN)
        if self._is_planning:
            self._skipped[record.request_id] = cause
        elif (wait := self._open.get(record.request_id)) is not None:
            wait.note(cause, self._now)

    def _preempt(self, record: Preempted) -> None:
        name = record.seq_id
        num_computed = self.state.sequences[name].num_computed_tokens
        self.num_dropped_tokens += num_computed
        self._reached[name] = max(self._reached.get(name, 0), num_computed)
        self._has_preempted = True
        self._tokens.preempt(name, PREEMPTED if self._is_planning else RESET)
        self._wait(name, self._now, after_preemption=True)

    def _finish(self, seq_id: str) -> None:
        self.ends[seq_id] = self._now
        self._close(seq_id)
        self._reached.pop(seq_id, None)
        if not any(isinstance(r, Sampled) and r.seq_id == seq_id for r in self._step):
            self._tokens.forget(seq_id)  # aborted; else when the step's tokens are noted

    def _count(self, record: Scheduled) -> None:
        """Count prefix hits of a request that begins, and tokens that are computed again."""
        name = record.seq_id
        start = record.num_computed_tokens
        if record.kind == "new":
            self.num_asked_tokens += self.state.sequences[name].num_prompt_tokens
            self.num_hit_tokens += start
        if (reached := self._reached.get(name)) is not None:
            stop = start + record.num_tokens
            self.num_recomputed_tokens += max(0, min(reached, stop) - start)
        self._close(name)

    # -- causes ----------------------------------------------------------------------------------

    def _explain(self) -> None:
        """Say why those that still wait were not admitted by this plan, and what its time is."""
        plan = [r for r in self._step if isinstance(r, Scheduled)]
        num_tokens = sum(r.num_tokens for r in plan)
        budget = self.trace.max_num_batched_tokens
        prompts = [r for r in plan if r.num_tokens > 1 and not self._is_decode(r)]
        longest = max((r.num_tokens for r in prompts), default=0)
        named = f"a prompt of {self._prompt_of(prompts, longest)} tokens" if longest else ""
        if self.state.waiting:
            is_long = longest >= _LONG_SHARE * budget
            self._explain_queue(num_tokens, f"{named} ahead" if is_long else BUDGET)
        is_prompts = sum(r.num_tokens for r in prompts) >= _LONG_SHARE * max(1, num_tokens)
        cause = f"{named}{IN_STEP}" if is_prompts and prompts else STEP
        left_out = BUDGET if num_tokens >= budget else UNKNOWN
        left_out = BLOCKS if self._has_preempted else left_out
        for seq_id in self._tokens.alive:
            seq = self.state.sequences[seq_id]
            why = cause if seq.in_flight else left_out
            if seq.status == "preempted":  # maybe its last token came behind that
                why = PREEMPTED
            self._tokens.explain(seq_id, why)

    def _explain_queue(self, num_tokens: int, budget_cause: str) -> None:
        """The first that was not stepped over has met a limit; all behind it wait for it."""
        cause = ""
        for request_id in self.state.waiting:
            own = self._skipped.get(request_id, "")
            if not cause and (not own or own == WAITS_FOR["paused"]):
                cause = own or self._cause_at_head(request_id, num_tokens)
                cause = budget_cause if cause == BUDGET else cause
            if (wait := self._open.get(request_id)) is not None:
                wait.note(cause or own, self._start)

    def _is_decode(self, record: Scheduled) -> bool:
        """True for a sequence whose prompt was computed before: its tokens are drafts."""
        seq = self.state.sequences[record.seq_id]
        return record.kind == "running" and record.num_computed_tokens >= seq.num_prompt_tokens

    def _prompt_of(self, prompts: list[Scheduled], longest: int) -> int:
        record = next((r for r in prompts if r.num_tokens == longest), None)
        return 0 if record is None else len(self.state.sequences[record.seq_id].token_ids)

    def _cause_at_head(self, request_id: str, num_tokens: int) -> str:
        """The limit that the request at the head of the queue has met, in vLLM's order.

        One that finds a place, a part of the budget and enough blocks waits for what is unknown.
        """
        num_left = self.trace.max_num_batched_tokens - num_tokens
        num_known = len(self.state.sequences[request_id].token_ids)
        if self._has_preempted:
            return BLOCKS
        if len(self.state.running) >= self.max_num_seqs:
            return SEQS
        if num_left <= 0 or (num_left < num_known and not self.chunks):
            return BUDGET
        return BLOCKS if self._room.is_missing(request_id, num_left) else UNKNOWN

    def _end_step(self, now: float) -> None:
        """Note the times of the step's tokens, and its numbers."""
        state = self.state
        step = self._step
        num_tokens = sum(r.num_tokens for r in step if isinstance(r, Scheduled))
        used = self.trace.num_blocks - 1 - len(state.free_queue)
        row = StepRow(
            self._number,
            start=self._start,
            planned=self._planned,
            end=now,
            num_tokens=num_tokens,
            num_running=len(state.running),
            num_waiting=len(state.waiting),
            num_used_blocks=used,
        )
        pause = max(0.0, self._start - self.rows[-1].end) if self.rows else 0.0
        sampled = dict.fromkeys(r.seq_id for r in step if isinstance(r, Sampled))
        self._tokens.end_step(pause, row, len(self.rows), sampled=sampled)
        for seq_id in (r.seq_id for r in step if isinstance(r, Finished)):
            self._tokens.forget(seq_id)
        self.rows.append(row)
        self._now = now
        self._step = []
        if self._number % _FORGET_EVERY == 0:
            self._room.forget_all_but(state.forget_finished())
