"""report: what happened in a recorded run of vLLM, and why requests waited, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from minivllm.metrics.loggers import WINDOWS_KEEP_ENDS
from minivllm.trace.records import Preempted, Sampled
from minivllm.xray.fields import needed
from minivllm.xray.format import XRay, groups_of
from minivllm.xray.replay_settings import arrivals_of, num_impossible_arrivals
from minivllm.xray.stalls import Stall
from minivllm.xray.waits import Walk

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 60  # of a curve, in letters


@dataclass(frozen=True)
class Report:
    """A run in numbers. ``walk`` has all waits, stalls and steps behind them."""

    xray: XRay
    walk: Walk
    longest: int = 5  # rows of each table

    @property
    def seconds(self) -> float:
        """From the first step's beginning to the last one's end."""
        rows = self.walk.rows
        return rows[-1].end - rows[0].start if rows else 0.0

    @property
    def budget_share(self) -> float:
        """Share of the token budget that steps used, their mean."""
        rows = self.walk.rows
        budget = self.xray.trace.max_num_batched_tokens
        return sum(row.num_tokens for row in rows) / (len(rows) * budget) if rows else 0.0

    @property
    def numbers(self) -> dict[str, int | float]:
        """Counts of the whole run, and its seconds."""
        walk = self.walk
        trace = self.xray.trace
        return {
            "requests": len(walk.arrivals),
            "steps": len(walk.rows),
            "seconds": self.seconds,
            "tokens": sum(isinstance(r, Sampled) for r in trace.records),
            "prompt tokens": walk.num_asked_tokens,
            "prompt tokens found": walk.num_hit_tokens,
            "preemptions": sum(isinstance(r, Preempted) for r in trace.records),
            "tokens dropped": walk.num_dropped_tokens,
            "tokens computed again": walk.num_recomputed_tokens,
        }

    def to_json(self) -> dict[str, Any]:
        """Return what the text says, for other programs; times are in seconds."""
        walk = self.walk
        return {
            "header": self.xray.header,
            "numbers": self.numbers,
            "steps waited": dict(self.steps_waited),
            "waits": [
                {
                    "request": wait.request_id, "since": wait.since, "until": wait.until,
                    "after preemption": wait.after_preemption, "cause": wait.cause,
                    "steps": dict(wait.causes), "seconds": dict(wait.seconds),
                }
                for wait in walk.waits
            ],
            "stalls": [
                {"request": s.seq_id, "at": s.start, "seconds": s.seconds, "cause": s.cause}
                for s in self._longest_stalls()
            ],
            "TTFT": self.ttft,
        }  # fmt: skip

    def _longest_stalls(self) -> list[Stall]:
        return sorted(self.walk.stalls, key=lambda stall: -stall.seconds)[: self.longest]

    @property
    def ttft(self) -> dict[str, float]:
        """Seconds from a request's arrival to its first token, by id."""
        walk = self.walk
        return {name: t - walk.arrivals[name] for name, t in walk.first_tokens.items()
                if name in walk.arrivals}  # fmt: skip

    @property
    def steps_waited(self) -> Counter:
        """Steps that requests have waited, all together, by cause."""
        total: Counter = Counter()
        for wait in self.walk.waits:
            total += wait.causes
        return total

    def __str__(self) -> str:
        return "\n".join([*self._summary(), *self._curves(), *self._tables()])

    __repr__ = __str__

    def _summary(self) -> list[str]:
        walk = self.walk
        trace = self.xray.trace
        header = self.xray.header
        found = self.numbers
        hits = walk.num_hit_tokens
        asked = walk.num_asked_tokens
        lines = [
            f"vLLM {header.get('vllm_version', '?')}, {header.get('model', '?')}: "
            f"{found['requests']} requests, {found['steps']} steps in {self.seconds:.2f} s, "
            f"{found['tokens']} tokens",
            f"budget: {trace.max_num_batched_tokens} tokens a step, {self.budget_share:.0%} used",
            f"blocks: {trace.num_blocks - 1} of {trace.block_size} tokens, at most "
            f"{max((row.num_used_blocks for row in walk.rows), default=0)} in use",
            f"prefix cache: {hits} of {asked} prompt tokens found" + (
                f" ({hits / asked:.0%})" if asked else ""
            ),
            *([f"  ({WINDOWS_KEEP_ENDS}: prefix_cache_retention_interval=0)"]
              if keeps_prompt_ends(header) else []),
            f"preemptions: {found['preemptions']}; {found['tokens dropped']} tokens dropped, "
            f"{found['tokens computed again']} of them computed again",
        ]  # fmt: skip
        if trace.first_step > 0:
            lines.append(f"the steps before {trace.first_step} were dropped")
        if strange := num_impossible_arrivals(self.xray):
            lines.append(f"the wall clock was set: of {strange} requests it is not known how long "
                         "they were on their way to the scheduler")  # fmt: skip
        return lines

    def _curves(self) -> list[str]:
        rows = self.walk.rows
        trace = self.xray.trace
        curves = (
            ("tokens", [row.num_tokens for row in rows], trace.max_num_batched_tokens),
            ("blocks", [row.num_used_blocks for row in rows], trace.num_blocks - 1),
            ("waiting", [row.num_waiting for row in rows], None),
        )
        return ["", *(f"{name:8} {sparkline(values, most)}" for name, values, most in curves)]

    def _tables(self) -> list[str]:
        walk = self.walk
        n = self.longest
        lines = ["", "steps waited, by cause: " + (counted(self.steps_waited) or "none")]
        waits = sorted((w for w in walk.waits if w.causes), key=lambda w: -sum(w.causes.values()))
        lines += _table("longest waits", ("request", "steps", "seconds", "cause"), [
            (w.request_id, sum(w.causes.values()), _seconds(None if w.until is None
             else w.until - w.since), counted(w.causes, w.seconds)) for w in waits[:n]
        ])  # fmt: skip
        columns = ("request", "at", "seconds", "cause")
        lines += _table("longest stalls between two tokens", columns, [
            (s.seq_id, _seconds(s.start - walk.rows[0].start), _seconds(s.seconds), s.cause)
            for s in self._longest_stalls()
        ])  # fmt: skip
        slow = sorted(self.ttft.items(), key=lambda item: -item[1])
        lines += _table("slowest first tokens", ("request", "TTFT", "prompt"), [
            (name, _seconds(t), walk.prompts[name]) for name, t in slow[:n]
        ])  # fmt: skip
        return lines


def report(xray: XRay, longest: int = 5) -> Report:
    """Walk through a recorded run.

    Args:
        xray: from ``load_xray``.
        longest: how many waits, stalls and first tokens are listed.

    Raises:
        ValueError: if the header lacks a limit, or records contradict each other.
    """
    settings = xray.header["settings"]
    chunks = settings.get("enable_chunked_prefill", True)
    walk = Walk(xray.trace, needed(xray.header, "max_num_seqs"), chunks, settings=settings)
    walk.arrivals |= arrivals_of(xray)
    return Report(xray, walk, longest)


def keeps_prompt_ends(header: Mapping[str, Any]) -> bool:
    """True of a run whose windows keep no more for others, so that they seldom find it."""
    settings = header["settings"]
    windows = any(group.sliding_window for group in groups_of(dict(header)))
    caches = settings.get("enable_prefix_caching", True)
    return windows and caches and settings.get("prefix_cache_retention_interval", 0) == 0


def sparkline(values: list[int], most: int | None = None) -> str:
    """A curve of letters, each the mean of its share of the values; ``most`` is the highest bar."""
    if not values:
        return ""
    width = min(_WIDTH, len(values))
    cuts = [i * len(values) // width for i in range(width + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(cuts)]
    top = most or max(*means, 1)
    last = len(_BARS) - 1
    return "".join(_BARS[min(last, round(mean / top * last))] for mean in means)


def counted(causes: Counter, seconds: Mapping[str, float] | None = None) -> str:
    """The three causes with most steps, or with most seconds, and the steps of each."""
    key = (lambda c: causes[c]) if seconds is None else (lambda c: (seconds.get(c, 0.0), causes[c]))
    return ", ".join(f"{c} {causes[c]}" for c in sorted(causes, key=key, reverse=True)[:3])


def _seconds(value: float | None) -> str:
    return "still waits" if value is None else f"{value:.3f} s"


def _table(title: str, head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> list[str]:
    if not rows:
        return []
    texts = [head, *[tuple(map(str, row)) for row in rows]]
    widths = [max(len(row[i]) for row in texts) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in texts]
    return ["", f"{title}:", *(f"  {line.rstrip()}" for line in lines)]
