"""Probability lines: distributions as lines from 0 to 1, and which token a number draws in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, draw_header
from minivllm.lab.viz.draw.palette import GREY, INK, OKABE_ITO, PAPER
from minivllm.lab.viz.draw.svg import SANS_EM, Drawing
from minivllm.utils.validation import check

LINE_WIDTH, BAR, PITCH = 620, 24, 34


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
    left = MARGIN + 12 * SANS_EM * max(map(len, rows)) + MARGIN
    height = HEADER_HEIGHT + PITCH * len(rows) + 24
    drawing = Drawing(left + LINE_WIDTH + MARGIN, height, head, f"{head}; {facts}.")
    draw_header(drawing, head, "the token whose interval the number falls into is drawn")
    for line, (name, probs) in enumerate(rows.items()):
        edge, y = 0.0, HEADER_HEIGHT + PITCH * line
        drawing.text(MARGIN, y + 16, name)
        drawing.rect(left, y, LINE_WIDTH, BAR, fill=PAPER, stroke=GREY)
        for token, prob in probs.items():
            x = left + round(edge * LINE_WIDTH)  # whole pixels: two processors draw the same
            edge += prob
            width = left + round(edge * LINE_WIDTH) - x
            drawing.place((name, token), x, y, width, BAR)
            colour = OKABE_ITO[tokens.index(token) % len(OKABE_ITO)]
            drawing.rect(x, y, width, BAR, f"{token}: {prob:.3f}", fill=colour,
                         fill_opacity=0.45, stroke=GREY)  # fmt: skip
            if width > 12 * SANS_EM * len(token) + 4:
                drawing.text(x + width / 2, y + 16, token, text_anchor="middle")
    at, bottom = left + number * LINE_WIDTH, HEADER_HEIGHT + PITCH * len(rows)
    drawing.path(f"M{at:g} {HEADER_HEIGHT - 6}V{bottom}", stroke=INK, stroke_width=2)
    drawing.text(at, bottom + 14, f"{number:g}", text_anchor="middle")
    lines = [
        f"{name}: {' '.join(f'{token} {prob:.3f}' for token, prob in probs.items())}"
        f" -> {hits[name]}"
        for name, probs in rows.items()
    ]
    return finish(drawing, "\n".join([head, *lines]), f"{head}; {facts}.", title, mark)


def drawn_token(probs: Mapping[str, float], number: float) -> str:
    """The token whose interval holds the number."""
    edge = 0.0
    for token, prob in probs.items():
        edge += prob
        if number < edge:
            return token
    return "another token"
