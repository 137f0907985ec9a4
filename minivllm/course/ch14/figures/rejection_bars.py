"""Rejection bars: a draft's probabilities over the target's, and what is accepted of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from minivllm.lab.viz.draw.bars import Bar, Part, draw_bars
from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import box_swatch
from minivllm.lab.viz.draw.palette import GREY, INK, PAPER
from minivllm.utils.validation import check

SHARED = {"fill": "#8fd3bf", "stroke": "#00523c"}
MISSING = {"fill": "#f7d98a", "stroke": INK}
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
    facts = f"accepted {shared:.0%} · drawn again {1 - shared:.0%} · p: target, q: draft"
    bars = [
        Bar(token, list(_parts(*pair)), "" if min(pair) else "p {:.2f}, q {:.2f}".format(*pair),
            height=30, bold=True)
        for token, pair in pairs.items()
    ]  # fmt: skip
    whole = max(max(pair) for pair in pairs.values())
    looks = [part.look for bar in bars for part in bar.parts]
    legend = [
        (box_swatch(hatched=look is TOO_MUCH, **look), text)
        for look, text in _MEANINGS
        if look in looks
    ]
    drawing = draw_bars(
        head, facts, f"{head}: {facts}.", bars=bars, whole=whole, length=480, legend=legend
    )
    lines = [f"{head}: {facts}", "token  target  draft  in both"]
    lines += [f"{t:5}  {p:6.2f}  {q:5.2f}  {min(p, q):7.2f}" for t, (p, q) in pairs.items()]
    return finish(drawing, "\n".join(lines), title, mark)


def _parts(target: float, draft: float) -> Iterator[Part]:
    """The part in both, and after it the part in one only; each ends at p or at q."""
    p, q = f"p {target:.2f}", f"q {draft:.2f}"
    low, high = sorted((target, draft))
    if low:
        yield Part(low, SHARED, f"p = {q}" if target == draft else p if target < draft else q)
    if high > low:
        missing = target > draft
        label = (p if target > draft else q) if low else ""
        yield Part(high - low, MISSING if missing else TOO_MUCH, label, hatched=not missing)


_MEANINGS = [
    (SHARED, "min(p, q): accepted"),
    (TOO_MUCH, "said too often: rejected"),
    (MISSING, "said too seldom: drawn instead"),
]
