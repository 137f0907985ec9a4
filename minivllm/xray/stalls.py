"""Stalls: gaps between two tokens of a sequence, and what took most of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median_low

BETWEEN, STEP = "time between two steps", "the step itself"
IN_STEP = " in the same step"  # the end of the cause that names a prompt
_SLOW = 5  # times as long as steps with as many tokens take: more than its tokens explain


@dataclass(frozen=True)
class Stall:
    """A gap between two tokens of a sequence, and what took most of it."""

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

    @property
    def seconds(self) -> float:
        return max(0.0, self.end - self.start)


class TokenTimes:
    """Times of the sequences' tokens, and where the time between two of them went."""

    def __init__(self) -> None:
        self.stalls: list[Stall] = []
        self.first: dict[str, float] = {}
        self._last: dict[str, float] = {}
        self._gaps: dict[str, Counter] = {}  # seconds by cause, since a sequence's last token
        self._causes: dict[str, str] = {}  # what this step's time is for each sequence
        self._gone: dict[str, str] = {}  # why a sequence was preempted, since its last token
        self._blamed: dict[int, int] = {}  # stalls for which a prompt is blamed: row of its step

    @property
    def alive(self) -> list[str]:
        """Sequences that have had a token, and have not ended."""
        return list(self._last)

    def explain(self, seq_id: str, cause: str) -> None:
        """Say what the time of this step is for a sequence."""
        self._causes[seq_id] = cause

    def preempt(self, seq_id: str, cause: str) -> None:
        """All time until the sequence's next token has this cause."""
        self._gone[seq_id] = cause

    def end_step(self, pause: float, row: StepRow, num_rows: int, sampled: Iterable[str]) -> None:
        """Note the tokens of a step, after a pause behind the one before.

        Args:
            pause: seconds.
            row: of the step.
            num_rows: how many steps came before.
            sampled: sequences that got tokens.
        """
        seconds = row.seconds
        if not seconds:  # a clock that stands still inside of steps
            seconds = pause
            pause = 0.0
        for seq_id in self._last:
            gap = self._gaps.setdefault(seq_id, Counter())
            gone = self._gone.get(seq_id)
            gap[gone or self._causes.get(seq_id, STEP)] += seconds
            gap[gone or BETWEEN] += pause
        for seq_id in sampled:
            self._note(seq_id, row.end, num_rows)
        self._causes = {}

    def forget(self, seq_id: str) -> None:
        """Forget a sequence that has ended."""
        for kept in (self._last, self._gaps, self._gone, self._causes):
            kept.pop(seq_id, None)

    def _note(self, seq_id: str, now: float, num_rows: int) -> None:
        before = self._last.get(seq_id)
        gap = self._gaps.pop(seq_id, Counter())
        if before is None:
            self.first[seq_id] = now
        else:
            cause = max(gap, key=lambda name: gap[name], default=BETWEEN)
            if cause.endswith(IN_STEP):
                self._blamed[len(self.stalls)] = num_rows
            self.stalls.append(Stall(seq_id, before, now - before, cause=cause))
        self._last[seq_id] = now
        self._gone.pop(seq_id, None)

    def acquit_prompts(self, rows: Sequence[StepRow]) -> None:
        """Blame a step itself, if steps with as many tokens as its prompt's take far less time."""
        by_size: dict[int, list[float]] = {}  # by the number of binary digits of a step's tokens
        for row in rows:
            by_size.setdefault(row.num_tokens.bit_length(), []).append(row.seconds)
        usual: dict[int, float] = {}
        seconds: list[float] = []
        for size in sorted(by_size, reverse=True):  # more tokens take no less time
            seconds += by_size[size]
            usual[size] = median_low(seconds)
        for stall, number in self._blamed.items():
            row = rows[number]
            if row.seconds > _SLOW * usual[row.num_tokens.bit_length()]:
                self.stalls[stall] = replace(self.stalls[stall], cause=STEP)
