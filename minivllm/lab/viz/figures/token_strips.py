"""Token strips: the whole vocabulary as a strip, the tokens that may come next lit up in it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, draw_header
from minivllm.lab.viz.draw.palette import GREY, INK, LINE, OKABE_ITO
from minivllm.lab.viz.draw.svg import SANS_EM, Drawing
from minivllm.utils.math_utils import cdiv
from minivllm.utils.validation import check

STRIP_WIDTH, LINES, LINE_HEIGHT, GAP = 420, 5, 4, 12
_PALE = "#ececec"
_LIT, _CHOSEN = OKABE_ITO[0], OKABE_ITO[3]


@dataclass(frozen=True)
class TokenStrip:
    """One place of a text, and what may come there.

    Args:
        label: where it is.
        allowed: ids of the tokens that may come.
        chosen: the one that came, if one did.
        note: a few words more.
    """

    label: str
    allowed: Collection[int]
    chosen: int | None = None
    note: str = ""


def token_strips(
    strips: Sequence[TokenStrip], vocab_size: int, title: str | None = None,
    mark: Sequence[Mark] = (),
) -> Figure:  # fmt: skip
    """Draw the vocabulary once for each place: allowed tokens blue, the chosen one orange.

    Args:
        strips: from the first place to the last.
        vocab_size: how many tokens there are; ids run line by line from the left.
        title, mark: what it shows, and strips to point at: (label, text).

    Raises:
        ValueError: if there is no strip, or an id that is not in the vocabulary.
    """
    check(len(strips) > 0, "strips", strips, "at least one")
    for strip in strips:
        ids = {*strip.allowed, *({strip.chosen} - {None})}
        ok = all(0 <= i < vocab_size for i in ids)
        check(ok, "allowed", sorted(ids)[-1:], f"token ids below {vocab_size}")
    per_line = cdiv(vocab_size, LINES)
    cell = STRIP_WIDTH / per_line
    left = MARGIN + 12 * SANS_EM * max(len(strip.label) for strip in strips) + 10
    right = max(len(_facts(strip, vocab_size)) for strip in strips) * 12 * SANS_EM
    head = f"What may come next, of {vocab_size:,} tokens"
    alt = f"{head}: " + "; ".join(f"{s.label}: {_facts(s, vocab_size)}" for s in strips) + "."
    pitch = LINES * LINE_HEIGHT + GAP
    height = HEADER_HEIGHT + pitch * len(strips) + MARGIN
    drawing = Drawing(left + STRIP_WIDTH + 12 + right + MARGIN, height, head, alt)
    facts = "every token is a cell: blue may come, grey may not"
    if any(strip.chosen is not None for strip in strips):
        facts += ", orange came"
    draw_header(drawing, head, facts)
    for index, strip in enumerate(strips):
        y = HEADER_HEIGHT + pitch * index
        drawing.text(left - 8, y + 14, strip.label, text_anchor="end")
        drawing.rect(left, y, STRIP_WIDTH, LINES * LINE_HEIGHT, fill=_PALE, stroke=LINE)
        drawing.place((strip.label,), left, y, STRIP_WIDTH, LINES * LINE_HEIGHT)
        lit = "".join(
            f"M{left + cell * (first % per_line):.1f} {y + first // per_line * LINE_HEIGHT}"
            f"h{max(1.2, cell * count):.1f}v{LINE_HEIGHT}h{-max(1.2, cell * count):.1f}z"
            for first, count in _runs(strip.allowed, per_line)
        )
        if lit:
            drawing.path(lit, f"{len(strip.allowed)} tokens", fill=_LIT)
        if strip.chosen is not None:
            line, place = divmod(strip.chosen, per_line)
            x = left + cell * (place + 0.5)
            drawing.rect(x - 3, y + (line + 0.5) * LINE_HEIGHT - 3, 6, 6, fill=_CHOSEN, stroke=INK)
        drawing.text(left + STRIP_WIDTH + 12, y + 14, _facts(strip, vocab_size), fill=GREY)
    width = max(len(strip.label) for strip in strips)
    lines = [f"{s.label:{width}s}  {_facts(s, vocab_size)}" for s in strips]
    return finish(drawing, "\n".join([head, *lines]), alt, title, mark)


def _facts(strip: TokenStrip, vocab_size: int) -> str:
    count = "all" if len(strip.allowed) == vocab_size else f"{len(strip.allowed):,}"
    return f"{count} allowed" + (f", {strip.note}" if strip.note else "")


def _runs(ids: Collection[int], per_line: int) -> list[tuple[int, int]]:
    """Neighbours in the same line as (first id, how many)."""
    runs: list[tuple[int, int]] = []
    for i in sorted(ids):
        if runs and sum(runs[-1]) == i and i % per_line:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((i, 1))
    return runs
