"""Probability lines: distributions as lines from 0 to 1, and which token a number draws in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minivllm.lab.viz.draw.bars import Bar, Part, draw_bars
from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.palette import GREY, OKABE_ITO, PAPER
from minivllm.lab.viz.draw.wording import as_drawn
from minivllm.utils.validation import check


def probability_lines(
    rows: Mapping[str, Mapping[str, float]], number: float, title: str | None = None,
    mark: Sequence[Mark] = (),
) -> Figure:  # fmt: skip
    """Draw each distribution as intervals side by side, and the number that falls into them.

    Args:
        rows: by name, the probabilities of tokens in the order of their intervals. What is missing
            to 1 is drawn white, at the end: all other tokens.
        number: from 0 to 1, not 1 itself.
        title, mark: what it shows, and intervals to point at: (row, token, text).

    Raises:
        ValueError: if there is no row, a row's sum is above 1, or the number is outside.
    """
    check(len(rows) > 0, "rows", rows, "at least one")
    for name, probs in rows.items():
        ok = sum(probs.values()) <= 1 + 1e-9 and min(probs.values()) >= 0
        check(ok, f"rows[{name!r}]", probs, "probabilities that sum to at most 1")
    check(0 <= number < 1, "number", number, "at least 0 and below 1")
    tokens = list(dict.fromkeys(token for probs in rows.values() for token in probs))
    hits = {name: drawn_token(probs, number) for name, probs in rows.items()}
    head = f"The number {number:g} in {len(rows)} distributions"
    facts = "; ".join(f"{name}: {hit}" for name, hit in hits.items())
    looks = [{"fill": c, "fill_opacity": 0.45, "stroke": GREY} for c in OKABE_ITO]
    look_of = {token: looks[i % len(looks)] for i, token in enumerate(tokens)}
    drawn = {name: {t: as_drawn(p, 3) for t, p in probs.items()} for name, probs in rows.items()}
    bars = []
    for name, probs in drawn.items():
        parts = [Part(p, look_of[token], token, token) for token, p in probs.items()]
        rest = Part(max(0.0, 1 - sum(probs.values())), {"fill": PAPER, "stroke": GREY})
        bars.append(Bar(name, [*parts, rest], height=24))
    told = "the token whose interval the number falls into is drawn"
    alt = f"{head}; {facts}."
    line = (number, f"{number:g}")
    drawing = draw_bars(head, told, alt, bars=bars, whole=1, length=620, line=line)
    lines = [
        f"{name}: {' '.join(f'{token} {prob:.3f}' for token, prob in probs.items())}"
        f" -> {hits[name]}"
        for name, probs in drawn.items()
    ]
    return finish(drawing, "\n".join([head, *lines]), title, mark)


def drawn_token(probs: Mapping[str, float], number: float) -> str:
    """The token whose interval holds the number."""
    edge = 0.0
    for token, prob in probs.items():
        edge += prob
        if number < edge:
            return token
    return "another token"
