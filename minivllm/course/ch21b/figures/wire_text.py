"""Wire text: bytes as they are printed, each in the colour of what it is for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, box_swatch, sheet
from minivllm.lab.viz.draw.palette import INK, LINE, ON_DARK, ON_LIGHT
from minivllm.lab.viz.draw.svg import MONO, text_width
from minivllm.lab.viz.draw.wording import count
from minivllm.lab.viz.figures.wire import PARTS, parts_of
from minivllm.utils.validation import check

COLUMNS = 92  # characters of a line
LINE_HEIGHT = 24
SIZE = 12
MOST_BYTES = 1500
INKS = {"head": ON_DARK, "JSON": INK}  # on a dark page the paper of JSON is dark, too

Piece = tuple[str, str, bool]  # part, characters, whether they are the first of it


def wire_text(received: bytes, title: str | None = None, mark: Sequence[Mark] = ()) -> Figure:
    """Draw the bytes of an answer as text, with the colours of ``wire``.

    Args:
        received: whole chunks of an answer in HTTP/1.1.
        title, mark: what it shows, and parts to point at: ("head", "chunk", "event", "JSON" or
            "text", words). The first such part is meant.

    Raises:
        ValueError: if there are no bytes, or more than 1,500.
    """
    ok = 0 < len(received) <= MOST_BYTES
    check(ok, "received", received, f"1 to {MOST_BYTES:,} bytes")
    parts = list(_spelled(received))
    used = [kind for kind in PARTS if kind in {kind for kind, _ in parts}]
    told = [f"{kind}: {text}" for kind, text in parts]
    head = "Bytes, and what they are for"
    facts = count(len(received), "byte")
    lines = list(_lines(parts))
    wide = text_width("0", SIZE, mono=True)
    legend = [(box_swatch(fill=PARTS[kind][0], stroke=LINE), PARTS[kind][1]) for kind in used]
    drawing = sheet(
        head, facts, f"{head}: {facts}. {'; '.join(told)}",
        right=MARGIN + wide * max(sum(len(text) for _, text, _ in line) for line in lines),
        bottom=HEADER_HEIGHT + LINE_HEIGHT * len(lines) + 6, legend=legend,
    )  # fmt: skip
    for row, line in enumerate(lines):
        x = float(MARGIN)
        y = HEADER_HEIGHT + LINE_HEIGHT * row
        for kind, text, is_first in line:
            width = wide * len(text)
            drawing.rect(x, y, width, LINE_HEIGHT - 6, fill=PARTS[kind][0])
            # as wide as its box, whatever font a machine has
            fitted = {"textLength": width, "lengthAdjust": "spacingAndGlyphs"}
            fill = INKS.get(kind, ON_LIGHT)
            drawing.text(
                x, y + 13, text.replace(" ", "\xa0"), font_family=MONO, fill=fill, **fitted
            )
            if is_first and (kind,) not in drawing.places:
                drawing.place((kind,), x, y, width, LINE_HEIGHT - 6)
            x += width
    return finish(drawing, "\n".join([head, facts, "", *told]), title, mark)


def _spelled(received: bytes) -> Iterator[tuple[str, str]]:
    """Each part in characters: line ends are written as in Python."""
    at = 0
    for kind, size in parts_of(received):
        text = received[at : at + size].decode(errors="replace")
        yield kind, text.replace("\r", "\\r").replace("\n", "\\n")
        at += size


def _lines(parts: Sequence[tuple[str, str]]) -> Iterator[list[Piece]]:
    """The parts cut into lines of at most 92 columns."""
    line: list[Piece] = []
    room = COLUMNS
    for kind, text in parts:
        rest = text
        while rest:
            line.append((kind, rest[:room], len(rest) == len(text)))
            room -= len(line[-1][1])
            rest = rest[len(line[-1][1]) :]
            if room == 0:
                yield line
                line = []
                room = COLUMNS
    if line:
        yield line
