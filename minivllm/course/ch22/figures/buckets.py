"""Buckets: a histogram as Prometheus keeps it, and where a quantile is looked for in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minivllm.lab.viz.draw.bars import Bar, Part, draw_bars
from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.palette import OKABE_ITO
from minivllm.lab.viz.draw.wording import count
from minivllm.utils.validation import check, is_number

LIGHT = {"fill": "#dcdcdc"}
DARK = {"fill": OKABE_ITO[0]}


def buckets(
    cumulative: Mapping[str, int], quantile: float = 0.9, title: str | None = None,
    mark: Sequence[Mark] = (),
) -> Figure:  # fmt: skip
    """Draw how many observations were at most as large as each bound, and the step between two.

    The light part of a bar came with a smaller bound already; the dark part is the bucket's own. A
    dashed line is the rank of the quantile: the first bar that reaches it holds the quantile.

    Args:
        cumulative: by upper bound, as ``/metrics`` and ``Histogram.buckets`` have them: each counts
            all below it, too; the last bound is "+Inf".
        quantile: above 0, at most 1.
        title, mark: what it shows, and buckets to point at: (upper bound, text).

    Raises:
        ValueError: if nothing was observed, the counts fall, or the quantile is none.
    """
    counts = list(cumulative.values())
    ok = len(counts) > 1 and counts == sorted(counts) and counts[-1] > 0
    check(ok, "cumulative", cumulative, "counts that do not fall, of at least one observation")
    ok = is_number(quantile) and 0 < quantile <= 1
    check(ok, "quantile", quantile, "above 0 and at most 1")
    rank = quantile * counts[-1]
    holds = next(bound for bound, number in cumulative.items() if number >= rank)
    facts = f"{count(counts[-1], 'observation')} · rank {rank:g} is in the bucket up to {holds}"
    rows = _shown(cumulative)
    bars = [
        Bar(f"le {bound}", [Part(before, LIGHT), Part(number - before, DARK)],
            f"{number} (+{number - before})", bold=bound == holds, key=bound)
        for bound, before, number in rows
    ]  # fmt: skip
    line = (rank, f"rank {rank:g}")
    drawing = draw_bars(
        "Buckets", facts, f"Buckets: {facts}.", bars=bars, whole=counts[-1], length=360, line=line
    )
    return finish(drawing, _text(rows, holds, facts), title, mark)


def _shown(cumulative: Mapping[str, int]) -> list[tuple[str, int, int]]:
    """Bound, how many before it, how many up to it; without the empty ones at both ends."""
    rows = []
    before = 0
    for bound, number in cumulative.items():
        rows.append((bound, before, number))
        before = number
    total = before
    return [row for row in rows if row[2] > 0 and (row[1] < total)]


def _text(rows: list[tuple[str, int, int]], holds: str, facts: str) -> str:
    lines = [facts, ""]
    for bound, before, number in rows:
        mark = "  <- here" if bound == holds else ""
        lines.append(f"le {bound:>7}  {number:6d}  (+{number - before}){mark}")
    return "\n".join(lines)
