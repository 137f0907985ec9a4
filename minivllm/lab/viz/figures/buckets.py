"""Buckets: a histogram as Prometheus keeps it, and where a quantile is looked for in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import MARGIN, draw_header, header_width
from minivllm.lab.viz.draw.palette import GREY, INK, LINE, OKABE_ITO
from minivllm.lab.viz.draw.svg import Drawing
from minivllm.lab.viz.draw.wording import count
from minivllm.utils.validation import check, is_number

ROW, NAMES, BAR = 22, 84, 360  # pixels: a bucket's height, its bound, all observations
TOP = 64


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
    shown = _shown(cumulative)
    alt = f"Buckets: {facts}."
    drawing = _svg(shown, rank, holds, "Buckets", facts, alt)
    return finish(drawing, _text(shown, holds, facts), alt, title, mark)


def _shown(cumulative: Mapping[str, int]) -> list[tuple[str, int, int]]:
    """Bound, how many before it, how many up to it; without the empty ones at both ends."""
    rows, before = [], 0
    for bound, number in cumulative.items():
        rows.append((bound, before, number))
        before = number
    total = before
    return [row for row in rows if row[2] > 0 and (row[1] < total)]


def _svg(rows: list[tuple[str, int, int]], rank: float, holds: str, *words: str) -> Drawing:
    title, facts, alt = words
    total = rows[-1][2]
    left, scale = MARGIN + NAMES, BAR / total
    bottom = TOP + ROW * len(rows)
    width = max(left + BAR + 110, header_width(title, facts))
    drawing = Drawing(width, bottom + MARGIN, title, alt)
    draw_header(drawing, title, facts)
    for index, (bound, before, number) in enumerate(rows):
        y = TOP + index * ROW
        drawing.place((bound,), left, y + 2, BAR, ROW - 4)
        bold = {"font_weight": "bold"} if bound == holds else {}
        drawing.text(left - 8, y + 15, f"le {bound}", text_anchor="end", **bold)
        if before:
            drawing.rect(left, y + 3, before * scale, ROW - 6, fill="#dcdcdc")
        own = (left + before * scale, y + 3, (number - before) * scale, ROW - 6)
        drawing.rect(*own, f"{number - before} in this bucket", fill=OKABE_ITO[0])
        label = f"{number} (+{number - before})"
        drawing.text(left + BAR + 10, y + 15, label, fill=GREY, **bold)
    x = left + rank * scale
    drawing.path(f"M{x:.2f} {TOP:g}V{bottom:g}", stroke=INK, stroke_dasharray="4 3")
    drawing.path(f"M{left:g} {TOP:g}V{bottom:g}", stroke=LINE)
    return drawing


def _text(rows: list[tuple[str, int, int]], holds: str, facts: str) -> str:
    lines = [facts, ""]
    for bound, before, number in rows:
        mark = "  <- here" if bound == holds else ""
        lines.append(f"le {bound:>7}  {number:6d}  (+{number - before}){mark}")
    return "\n".join(lines)
