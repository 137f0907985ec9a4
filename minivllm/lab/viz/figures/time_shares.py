"""Time shares: where the seconds of a step went, a bar for each part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, draw_header, header_width
from minivllm.lab.viz.draw.palette import GREY, OKABE_ITO
from minivllm.lab.viz.draw.svg import SANS_EM, Drawing
from minivllm.lab.viz.draw.wording import pad
from minivllm.utils.validation import check, is_number

LINE = 24
LONGEST = 360  # pixels of 100 %
CELLS = 50  # characters of 100 %


def time_shares(
    seconds: Mapping[str, float], title: str | None = None, mark: Sequence[Mark] = ()
) -> Figure:
    """Draw the parts of a whole as bars, the longest first.

    Args:
        seconds: by part; together they are the whole.
        title, mark: what it shows, and bars to point at: (part, text).

    Raises:
        ValueError: if there is no part, or its seconds are not numbers of at least 0, or all 0.
    """
    ok = all(is_number(value) and value >= 0 for value in seconds.values())
    check(ok and sum(seconds.values()) > 0, "seconds", seconds, "numbers of at least 0, one above")
    whole = sum(seconds.values())
    parts = sorted(seconds.items(), key=lambda part: -part[1])
    shares = {name: value / whole for name, value in parts}
    facts = f"{1e3 * whole:.1f} ms in all"
    told = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    head = "Where the time went"
    alt = f"{head}, {facts}: {told}."
    return finish(_svg(shares, head, facts, alt), _text(shares, head, facts), alt, title, mark)


def _svg(shares: dict[str, float], title: str, facts: str, alt: str) -> Drawing:
    names = max(map(len, shares)) * 12 * SANS_EM + 10
    width = max(2 * MARGIN + names + LONGEST + 50, header_width(title, facts))
    drawing = Drawing(width, HEADER_HEIGHT + LINE * len(shares) + MARGIN, title, alt)
    draw_header(drawing, title, facts)
    left = MARGIN + names
    for line, (name, share) in enumerate(shares.items()):
        y = HEADER_HEIGHT + LINE * line
        drawing.place((name,), left, y + 3, LONGEST * share, LINE - 8)
        drawing.text(left - 8, y + 15, name, text_anchor="end")
        drawing.rect(left, y + 3, LONGEST * share, LINE - 8, fill=OKABE_ITO[0])
        drawing.text(left + LONGEST * share + 6, y + 15, f"{share:.0%}", fill=GREY)
    return drawing


def _text(shares: dict[str, float], title: str, facts: str) -> str:
    width = max(map(len, shares)) + 2
    lines = [f"{title}: {facts}"]
    for name, share in shares.items():
        lines.append(f"  {pad(name, width)}{pad('█' * round(CELLS * share), CELLS)} {share:4.0%}")
    return "\n".join(lines)
