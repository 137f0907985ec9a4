"""Rejection bars: a draft's probabilities over the target's, and what is accepted of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import (
    HEADER_HEIGHT,
    MARGIN,
    SWATCH_HEIGHT,
    SWATCH_WIDTH,
    Legend,
    Swatch,
    draw_header,
    header_width,
)
from minivllm.lab.viz.draw.palette import GREY, INK, PAPER
from minivllm.lab.viz.draw.svg import Drawing
from minivllm.utils.validation import check

BAR, GAP, HIGHEST = 54, 26, 190
SHARED, MISSING = {"fill": "#8fd3bf", "stroke": "#00523c"}, {"fill": "#f7d98a", "stroke": INK}
TOO_MUCH = {"fill": PAPER, "stroke": GREY}


def rejection_bars(
    target_probs: Mapping[str, float], draft_probs: Mapping[str, float], title: str | None = None,
    mark: Sequence[Mark] = (),
) -> Figure:  # fmt: skip
    """Draw, token by token, the part of two distributions that is in both, and what is in one only.

    A draft is kept with probability min(target, draft) and thrown away where the draft model says
    it too often. Those cases are given to the tokens that it says too seldom: together every token
    has the target's probability.

    Args:
        target_probs, draft_probs: by token, in the same order; each sums to 1.
        title, mark: what it shows, and bars to point at: (token, text).

    Raises:
        ValueError: if the tokens differ, or a sum is not 1.
    """
    same = list(target_probs) == list(draft_probs)
    check(same, "draft_probs", draft_probs, f"of the tokens {list(target_probs)}")
    for name, probs in (("target_probs", target_probs), ("draft_probs", draft_probs)):
        ok = abs(sum(probs.values()) - 1) < 1e-6 and min(probs.values()) >= 0
        check(ok, name, probs, "probabilities that sum to 1")
    pairs = {token: (target_probs[token], draft_probs[token]) for token in target_probs}
    shared = sum(min(pair) for pair in pairs.values())
    head = "What the rejection sampler does with a draft"
    facts = f"accepted {shared:.0%} · drawn again {1 - shared:.0%} · below: target | draft"
    width = max(2 * MARGIN + (BAR + GAP) * len(pairs), header_width(head, facts), 560)
    legend = Legend(_ENTRIES, width - 2 * MARGIN)
    bottom = HEADER_HEIGHT + 16 + HIGHEST
    drawing = Drawing(width, bottom + 40 + legend.height, head, f"{head}: {facts}.")
    draw_header(drawing, head, facts)
    scale = HIGHEST / max(max(pair) for pair in pairs.values())
    for i, (token, (target, draft)) in enumerate(pairs.items()):
        x, low = MARGIN + GAP / 2 + (BAR + GAP) * i, min(target, draft) * scale
        high = max(target, draft) * scale
        drawing.rect(x, bottom - low, BAR, low, **SHARED)
        drawing.place((token,), x, bottom - high, BAR, high)
        box = (x, bottom - high, BAR, high - low)
        drawing.rect(*box, **(MISSING if target > draft else TOO_MUCH))
        if draft > target:
            drawing.hatch(*box)
        with drawing.group(text_anchor="middle"):
            drawing.text(x + BAR / 2, bottom + 16, token, font_weight="bold")
            numbers = f"{target:.2f} | {draft:.2f}"
            drawing.text(x + BAR / 2, bottom + 31, numbers, font_size=11, fill=GREY)
    legend.draw(drawing, MARGIN, bottom + 36)
    lines = [f"{head}: {facts}", "token  target  draft  in both"]
    lines += [f"{t:5}  {p:6.2f}  {q:5.2f}  {min(p, q):7.2f}" for t, (p, q) in pairs.items()]
    return finish(drawing, "\n".join(lines), f"{head}: {facts}.", title, mark)


def _swatch(look: dict, hatched: bool = False) -> Swatch:
    def draw(drawing: Drawing, x: float, y: float) -> None:
        drawing.rect(x, y, SWATCH_WIDTH, SWATCH_HEIGHT, **look)
        if hatched:
            drawing.hatch(x, y, SWATCH_WIDTH, SWATCH_HEIGHT)

    return draw


_ENTRIES = [
    (_swatch(SHARED), "min(target, draft): accepted"),
    (_swatch(TOO_MUCH, hatched=True), "said too often: rejected"),
    (_swatch(MISSING), "said too seldom: drawn instead"),
]
