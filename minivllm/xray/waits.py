"""Waits and stalls of a recorded run, each with its cause, read off the state at each step."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from minivllm.trace import Trace
from minivllm.trace.records import (
    Finished,
    Preempted,
    Record,
    RequestAdded,
    Sampled,
    Scheduled,
    StepEnded,
    StepPlanned,
    StepStarted,
)
from minivllm.trace.state import State

BLOCKS, BUDGET, SEQS, BETWEEN = "blocks", "budget", "max_num_seqs", "time between two steps"
_LONG_SHARE = 0.5  # of the budget: a prompt that takes so much is named as the cause


@dataclass
class Wait:
    """A request in the waiting queue, before its first plan or after a preemption."""

    request_id: str
    since: float  # seconds
    after_preemption: bool
    until: float | None = None  # None: it waits at the end
    causes: Counter = field(default_factory=Counter)  # steps in which it was left there, by cause

    @property
    def cause(self) -> str:
        """The most frequent cause."""
        return self.causes.most_common(1)[0][0] if self.causes else BETWEEN


@dataclass(frozen=True)
class Stall:
    """A gap between two tokens of a sequence."""

    seq_id: str
    start: float
    seconds: float
    cause: str


@dataclass
class StepRow:
    """Numbers of one step."""

    step: int
    start: float
    planned: float
    end: float
    num_tokens: int
    num_running: int
    num_waiting: int
    num_used_blocks: int


class Walk:
    """One pass over the records of a run, which collects all that the report needs.

    Args:
        trace: the run.
        max_num_seqs: its limit of sequences that run at once.
        chunks: whether prompts are split.
    """

    def __init__(self, trace: Trace, max_num_seqs: int, chunks: bool = True):
        self.trace, self.max_num_seqs, self.chunks = trace, max_num_seqs, chunks
        self.state: State = trace.beginning()
        self.rows: list[StepRow] = []
        self.waits: list[Wait] = []
        self.stalls: list[Stall] = []
        self.arrivals: dict[str, float] = {}
        self.first_tokens: dict[str, float] = {}
        self.ends: dict[str, float] = {}
        self.num_recomputed_tokens = 0
        self.num_hit_tokens = self.num_asked_tokens = 0
        self._open: dict[str, Wait] = {}
        self._last_tokens: dict[str, float] = {}
        self._gap_causes: dict[str, str] = {}  # since a sequence's last token
        self._lost: dict[str, int] = {}  # tokens computed before a preemption
        self._step: list[Record] = []
        self._number, self._has_preempted = -1, False
        self._now = self._start = self._planned = 0.0
        for record in trace.records:
            self._read(record)

    def _read(self, record: Record) -> None:
        match record:
            case RequestAdded():
                self._now = record.time
                self.arrivals[record.request_id] = record.time
                self._wait(record.request_id, after_preemption=False)
            case StepStarted():
                self._now, self._start, self._number = record.time, record.time, record.step
                self._step, self._has_preempted = [], False
            case Preempted():
                lost = self.state.sequences[record.seq_id].num_computed_tokens
                self._lost[record.seq_id] = lost
                self._has_preempted = True
                self._wait(record.seq_id, after_preemption=True)
            case Scheduled():
                self._count(record)
            case Finished():
                self.ends[record.seq_id] = self._now
                self._close(record.seq_id)
        self.state.apply(record)
        self._step.append(record)
        match record:
            case StepPlanned():
                self._planned = record.time
                self._explain()
            case StepEnded():
                self._now = record.time
                self._end_step()

    def _wait(self, request_id: str, after_preemption: bool) -> None:
        wait = self._open[request_id] = Wait(request_id, self._now, after_preemption)
        self.waits.append(wait)

    def _close(self, request_id: str) -> None:
        if (wait := self._open.pop(request_id, None)) is not None:
            wait.until = self._now

    def _count(self, record: Scheduled) -> None:
        """Count prefix hits of a request that begins, and what one that resumes computes again."""
        seq = self.state.sequences[record.seq_id]
        if record.kind == "new":
            self.num_asked_tokens += seq.num_prompt_tokens
            self.num_hit_tokens += record.num_computed_tokens
        elif record.kind == "resumed":
            lost = self._lost.pop(record.seq_id, 0)
            self.num_recomputed_tokens += max(0, lost - record.num_computed_tokens)
        self._close(record.seq_id)

    def _explain(self) -> None:
        """Say why those that still wait were not admitted by this plan."""
        plan = [r for r in self._step if isinstance(r, Scheduled)]
        prompts = [r for r in plan if r.num_tokens > 1 and not self._is_decode(r)]
        longest = max((r.num_tokens for r in prompts), default=0)
        budget = self.trace.max_num_batched_tokens
        ahead = f"a prompt of {self._prompt_of(prompts, longest)} tokens ahead" if longest else ""
        if waiting := self.state.waiting:
            cause = self._cause_at_head(waiting[0], sum(r.num_tokens for r in plan))
            if cause == BUDGET and longest >= _LONG_SHARE * budget:
                cause = ahead
            for request_id in waiting:
                if request_id in self._open:
                    self._open[request_id].causes[cause] += 1
        planned = {r.seq_id for r in plan}
        for seq_id in self._last_tokens:
            seq = self.state.sequences[seq_id]
            if seq.status == "preempted":
                self._gap_causes[seq_id] = "preempted for blocks"
            elif seq.status == "running" and seq_id not in planned:
                self._gap_causes.setdefault(seq_id, BUDGET)
            elif longest:
                self._gap_causes.setdefault(seq_id, ahead.replace(" ahead", " in the same step"))

    def _is_decode(self, record: Scheduled) -> bool:
        """True for a sequence whose prompt was computed before: its tokens are drafts."""
        seq = self.state.sequences[record.seq_id]
        return record.num_computed_tokens >= seq.num_prompt_tokens

    def _prompt_of(self, prompts: list[Scheduled], longest: int) -> int:
        record = next((r for r in prompts if r.num_tokens == longest), None)
        return 0 if record is None else len(self.state.sequences[record.seq_id].token_ids)

    def _cause_at_head(self, request_id: str, num_tokens: int) -> str:
        """The limit that the request at the head of the queue has met.

        One that finds a place and a part of the budget lacks blocks.
        """
        num_left = self.trace.max_num_batched_tokens - num_tokens
        num_known = len(self.state.sequences[request_id].token_ids)
        if self._has_preempted:
            return BLOCKS
        if len(self.state.running) >= self.max_num_seqs:
            return SEQS
        if num_left <= 0 or (num_left < num_known and not self.chunks):
            return BUDGET
        return BLOCKS

    def _end_step(self) -> None:
        """Note the times of the step's tokens, and its numbers."""
        for seq_id in dict.fromkeys(r.seq_id for r in self._step if isinstance(r, Sampled)):
            before = self._last_tokens.get(seq_id)
            if before is None:
                self.first_tokens[seq_id] = self._now
            else:
                cause = self._gap_causes.get(seq_id, BETWEEN)
                self.stalls.append(Stall(seq_id, before, self._now - before, cause))
            self._last_tokens[seq_id] = self._now
            self._gap_causes.pop(seq_id, None)
        for seq_id in (r.seq_id for r in self._step if isinstance(r, Finished)):
            self._last_tokens.pop(seq_id, None)
        state = self.state
        num_tokens = sum(r.num_tokens for r in self._step if isinstance(r, Scheduled))
        used = self.trace.num_blocks - 1 - state.num_free_blocks
        times = self._start, self._planned, self._now
        sizes = num_tokens, len(state.running), len(state.waiting), used
        self.rows.append(StepRow(self._number, *times, *sizes))
