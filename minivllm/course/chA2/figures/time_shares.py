"""Time shares: where the seconds of a step went, a bar for each part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minivllm.lab.viz.draw.bars import Bar, Part, draw_bars
from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.palette import OKABE_ITO
from minivllm.lab.viz.draw.wording import pad
from minivllm.utils.validation import check, is_number

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
    bars = [
        Bar(name, [Part(share, {"fill": OKABE_ITO[0]})], f"{share:.0%}", height=16)
        for name, share in shares.items()
    ]
    drawing = draw_bars(head, facts, f"{head}, {facts}: {told}.", bars=bars, whole=1, length=360)
    return finish(drawing, _text(shares, head, facts), title, mark)


def _text(shares: dict[str, float], title: str, facts: str) -> str:
    width = max(map(len, shares)) + 2
    lines = [f"{title}: {facts}"]
    for name, share in shares.items():
        lines.append(f"  {pad(name, width)}{pad('█' * round(CELLS * share), CELLS)} {share:4.0%}")
    return "\n".join(lines)
