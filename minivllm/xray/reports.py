"""report: what happened in a recorded run of vLLM, and why requests waited, as text."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from minivllm.trace.records import Preempted, Sampled
from minivllm.xray.format import XRay
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
        rows, budget = self.walk.rows, self.xray.trace.max_num_batched_tokens
        return sum(row.num_tokens for row in rows) / (len(rows) * budget) if rows else 0.0

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
        walk, trace, header = self.walk, self.xray.trace, self.xray.header
        num_tokens = sum(isinstance(r, Sampled) for r in trace.records)
        num_preemptions = sum(isinstance(r, Preempted) for r in trace.records)
        hits, asked = walk.num_hit_tokens, walk.num_asked_tokens
        return [
            f"vLLM {header['vllm_version']}, {header['model']}: {len(walk.arrivals)} requests, "
            f"{len(walk.rows)} steps in {self.seconds:.2f} s, {num_tokens} tokens",
            f"budget: {trace.max_num_batched_tokens} tokens a step, {self.budget_share:.0%} used",
            f"blocks: {trace.num_blocks - 1} of {trace.block_size} tokens, at most "
            f"{max((row.num_used_blocks for row in walk.rows), default=0)} in use",
            f"prefix cache: {hits} of {asked} prompt tokens found" + (
                f" ({hits / asked:.0%})" if asked else ""
            ),
            f"preemptions: {num_preemptions}; {walk.num_recomputed_tokens} tokens computed again",
        ]  # fmt: skip

    def _curves(self) -> list[str]:
        rows, trace = self.walk.rows, self.xray.trace
        curves = (
            ("tokens", [row.num_tokens for row in rows], trace.max_num_batched_tokens),
            ("blocks", [row.num_used_blocks for row in rows], trace.num_blocks - 1),
            ("waiting", [row.num_waiting for row in rows], None),
        )
        return ["", *(f"{name:8} {sparkline(values, most)}" for name, values, most in curves)]

    def _tables(self) -> list[str]:
        walk, n = self.walk, self.longest
        lines = ["", "steps waited, by cause: " + (_counted(self.steps_waited) or "none")]
        waits = sorted((w for w in walk.waits if w.causes), key=lambda w: -sum(w.causes.values()))
        lines += _table("longest waits", ("request", "steps", "seconds", "cause"), [
            (w.request_id, sum(w.causes.values()), _seconds(None if w.until is None
             else w.until - w.since), _counted(w.causes)) for w in waits[:n]
        ])  # fmt: skip
        stalls = sorted(walk.stalls, key=lambda stall: -stall.seconds)
        columns = ("request", "at", "seconds", "cause")
        lines += _table("longest stalls between two tokens", columns, [
            (s.seq_id, _seconds(s.start), _seconds(s.seconds), s.cause) for s in stalls[:n]
        ])  # fmt: skip
        slow = sorted(self.ttft.items(), key=lambda item: -item[1])
        lines += _table("slowest first tokens", ("request", "TTFT", "prompt"), [
            (name, _seconds(t), self.walk.state.sequences[name].num_prompt_tokens)
            for name, t in slow[:n] if name in self.walk.state.sequences
        ])  # fmt: skip
        return lines


def report(xray: XRay, longest: int = 5) -> Report:
    """Walk through a recorded run.

    Args:
        xray: from ``load_xray``.
        longest: how many waits, stalls and first tokens are listed.
    """
    settings = xray.header["settings"]
    chunks = settings.get("enable_chunked_prefill", True)
    return Report(xray, Walk(xray.trace, settings["max_num_seqs"], chunks), longest)


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


def _counted(causes: Counter) -> str:
    return ", ".join(f"{cause} {count}" for cause, count in causes.most_common(3))


def _seconds(value: float | None) -> str:
    return "still waits" if value is None else f"{value:.3f} s"


def _table(title: str, head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> list[str]:
    if not rows:
        return []
    texts = [head, *[tuple(map(str, row)) for row in rows]]
    widths = [max(len(row[i]) for row in texts) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in texts]
    return ["", f"{title}:", *(f"  {line.rstrip()}" for line in lines)]
