"""Wire: the bytes of a streamed answer, read by read, and what each of them is for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby

from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, box_swatch, sheet
from minivllm.lab.viz.draw.palette import GREY, LINE, OKABE_ITO
from minivllm.lab.viz.draw.svg import Drawing
from minivllm.lab.viz.draw.wording import pad
from minivllm.utils.validation import check

# Sizes in pixels.
ROW = 28
BAR = 18
NAMES = 70
COUNTS = 120
BYTES = 560  # of the longest read

MOST_READS = 24
PARTS = {  # by name: its colour, and what a legend says of it
    "head": ("#6e6e6e", "head of the answer"),
    "chunk": (OKABE_ITO[1], "chunk: its length and end"),
    "event": (OKABE_ITO[4], "event: its data: and empty line"),
    "JSON": ("#e4e4e4", "JSON around the text"),
    "text": (OKABE_ITO[3], "the text"),
}
_KIND = re.compile(
    rb"(?P<head>HTTP/.+?\r\n\r\n)|(?P<chunk>[0-9a-f]+\r\n|\r\n)"
    rb"|(?P<event>(?<=\n)data: (?:\[DONE\])?|\n\n)"
    rb'|(?P<text>(?<="text":")(?:[^"\\]|\\.)+(?=")|(?<="content":")(?:[^"\\]|\\.)+(?="))'
    rb"|(?P<JSON>.)",
    re.DOTALL,
)


def wire(reads: Mapping[str, bytes], title: str | None = None, mark: Sequence[Mark] = ()) -> Figure:
    """Draw a bar for each read from a socket, as long as its bytes, in the colours of their parts.

    Args:
        reads: what was read, by a name such as "step 1": whole chunks of an answer in HTTP/1.1.
        title, mark: what it shows, and parts to point at: (read, "head", "chunk", "event", "JSON"
            or "text", words). The first such part of the read is meant.

    Raises:
        ValueError: if there is no read, an empty one, or more than 24.
    """
    ok = 0 < len(reads) <= MOST_READS and all(reads.values())
    check(ok, "reads", reads, f"1 to {MOST_READS} pieces of bytes, none of them empty")
    rows = {name: parts_of(received) for name, received in reads.items()}
    texts = sum(_sizes(parts)["text"] for parts in rows.values())
    facts = f"{sum(map(len, reads.values())):,} bytes in all, {texts} of them text"
    alt = f"Bytes of a streamed answer: {facts}. " + " ".join(
        f"{name}: {_told(parts)}." for name, parts in rows.items()
    )
    return finish(_svg(rows, facts, alt), _text(rows, facts), title, mark)


def parts_of(received: bytes) -> list[tuple[str, int]]:
    """The parts in their order, each with the number of its bytes."""
    found = ((match.lastgroup or "", len(match[0])) for match in _KIND.finditer(received))
    return [
        (kind, sum(size for _, size in same)) for kind, same in groupby(found, lambda part: part[0])
    ]


def _sizes(parts: list[tuple[str, int]]) -> Counter[str]:
    sizes: Counter[str] = Counter()
    for kind, size in parts:
        sizes[kind] += size
    return sizes


def _told(parts: list[tuple[str, int]]) -> str:
    sizes = _sizes(parts)
    return ", ".join(f"{kind} {sizes[kind]}" for kind in PARTS if sizes[kind])


def _svg(rows: Mapping[str, list[tuple[str, int]]], facts: str, alt: str) -> Drawing:
    name = "Bytes on the wire"
    scale = BYTES / max(sum(size for _, size in parts) for parts in rows.values())
    left = MARGIN + NAMES
    used = [kind for kind in PARTS if any(kind in _sizes(parts) for parts in rows.values())]
    legend = [(box_swatch(fill=PARTS[kind][0], stroke=LINE), PARTS[kind][1]) for kind in used]
    bottom = HEADER_HEIGHT + ROW * len(rows) + 8
    drawing = sheet(name, facts, alt, right=left + BYTES + COUNTS, bottom=bottom, legend=legend)
    for row, (label, parts) in enumerate(rows.items()):
        y, x = HEADER_HEIGHT + ROW * row, float(left)
        drawing.text(left - 8, y + 13, label, text_anchor="end")
        for kind, size in parts:
            width = size * scale
            drawing.rect(x, y, width, BAR, f"{kind}: {size} bytes", fill=PARTS[kind][0])
            if (label, kind) not in drawing.places:
                drawing.place((label, kind), x, y, width, BAR)
            x += width
        drawing.rect(left, y, x - left, BAR, fill="none", stroke=LINE)
        sizes = _sizes(parts)
        counts = f"{sizes.total()} bytes" + (f", {sizes['text']} text" if sizes["text"] else "")
        drawing.text(x + 8, y + 13, counts, fill=GREY)
    return drawing


def _text(rows: Mapping[str, list[tuple[str, int]]], facts: str) -> str:
    width = max(map(len, rows)) + 2
    lines = [f"{pad(label, width)}{_told(parts)}" for label, parts in rows.items()]
    return "\n".join(["Bytes on the wire", facts, "", *lines])
