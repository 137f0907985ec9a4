"""Claim and marks: what a figure shows, in its first line, and where to look."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Collection, Sequence

from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, MAX_WIDTH
from minivllm.lab.viz.draw.marks import EDGE, Callout, draw_frame, draw_marks, place_marks
from minivllm.lab.viz.draw.outlines import Box
from minivllm.lab.viz.draw.palette import ACCENT, GREY
from minivllm.lab.viz.draw.svg import Drawing, text_width
from minivllm.lab.viz.draw.wording import listing, number, wrap
from minivllm.utils.validation import check

CLAIM_LINE = 20
GREY_LINE = 18
MARK_LINE = 17
NARROWEST = 480  # a claim makes a figure at least as wide, if it needs it

Mark = tuple  # a place, in one or several items, and the words at it


def told(text: str, alt: str, title: str | None, mark: Sequence[Mark]) -> tuple[str, str]:
    """Text and alternative text of a figure, with its claim in front and its marks behind."""
    places = [f"{_name(place)}: {words}" for *place, words in mark]
    text = "\n".join([*filter(None, [title]), text, *(f"^ {place}" for place in places)])
    alt = f"{title.rstrip('.')}. {alt}" if title else alt
    return text, f"{alt} Marked: {'; '.join(places)}." if places else alt


def check_mark(mark: Sequence[Mark], places: Collection[tuple]) -> None:
    """Refuse a mark whose place a figure does not have, and say which it has."""
    for one in mark:
        if len(one) < 2 or tuple(one[:-1]) not in places or not isinstance(one[-1], str):
            check(False, "mark", one, f"a place and a text; places are {_summary(places)}")


def add_claim(drawing: Drawing, claim: str | None, mark: Sequence[Mark]) -> None:
    """Put a claim above the header, whose own title turns grey, and marks at their places.

    Whatever is below the header moves down to make room. A mark for whose words there is no free
    paper near its place has them in a row between the header and the rest.
    """
    check_mark(mark, drawing.places)
    root = drawing.root
    start = next(i for i, element in enumerate(root) if element.tag == "g")
    header, *rest = root[start:]
    texts = [text.text for text in header]
    for element in [header, *rest]:
        root.remove(element)
    width = float(root.get("width"))
    width = max(width, min(NARROWEST, 2 * MARGIN + text_width(claim or "", 15, bold=True)))
    callouts = [
        Callout(_name(place), drawing.places[tuple(place)], words) for *place, words in mark
    ]
    marked = place_marks(rest, callouts, width, float(root.get("height")))
    far = [
        callout for callout, spot in zip(marked.callouts, marked.spots, strict=True) if spot is None
    ]
    ends = [it.box[0] + 2 + text_width(it.words, bold=True) + MARGIN for it in far]
    width = max(marked.width, min(MAX_WIDTH, max(ends, default=0)))
    top = _draw_header(drawing, claim, texts, width)
    rows = _rows(far, width)
    down = top - HEADER_HEIGHT + (MARK_LINE * (1 + max(rows)) + 4 if rows else 0)
    moved = ET.SubElement(root, "g", transform=f"translate(0 {down:g})")
    moved.extend(marked.elements)
    with drawing.shifted(down):
        draw_marks(drawing, marked)
    for callout, row in zip(far, rows, strict=True):
        y = top + MARK_LINE * (max(rows) - row) + 11
        _draw_far(drawing, callout, y=y, down=down, width=width)
    drawing.resize(width, marked.height + down)


def _draw_header(drawing: Drawing, claim: str | None, texts: list[str], width: float) -> float:
    """Claim and grey lines; where what is below them begins."""
    lines = wrapped(claim, width - 2 * MARGIN, 15, True) if claim else texts[:1]
    greys = texts if claim else texts[1:]
    if text_width(" · ".join(greys)) <= width - 2 * MARGIN:
        greys = [" · ".join(greys)]
    with drawing.group():
        for i, line in enumerate(lines):
            y = MARGIN + 12 + CLAIM_LINE * i
            drawing.text(MARGIN, y, line, font_size=15, font_weight="bold")
        for i, line in enumerate(greys, 1):
            drawing.text(MARGIN, y + GREY_LINE * i, line, font_size=12, fill=GREY)
    return y + GREY_LINE * len(greys) + 10.0


def wrapped(text: str, width: float, font_size: float = 12, bold: bool = False) -> list[str]:
    """Lines that fit with any of the usual fonts."""
    lengths = range(int(width / font_size * 3), 10, -1)
    fits = [wrap(text, n) for n in lengths]
    fits = [w for w in fits if max(text_width(line, font_size, bold) for line in w) <= width]
    fewest = [w for w in fits if len(w) == len(fits[0])]
    return fewest[-1] if bold else fits[0]  # lines of a claim are about equally long


def _left(box: Box, words: str, width: float) -> float:
    """Left edge of the words: at the leader, or as far right as they fit."""
    return max(MARGIN, min(box[0] + 2, width - MARGIN - text_width(words, bold=True)))


def _rows(callouts: Sequence[Callout], width: float) -> list[int]:
    """The row of each callout's words from below: those further left are above, if they would meet.

    So no leader crosses the words of another.
    """
    spans: list[tuple[float, float, int]] = []
    rows = dict.fromkeys(range(len(callouts)), 0)
    for i in sorted(rows, key=lambda i: -callouts[i].box[0]):
        box = callouts[i].box
        words = callouts[i].words
        left = _left(box, words, width)
        right = max(box[0], left + text_width(words, bold=True)) + 8
        rows[i] = 1 + max((row for a, b, row in spans if a < right and left < b), default=-1)
        spans.append((min(left, box[0] - 2), right, rows[i]))
    return list(rows.values())


def _draw_far(drawing: Drawing, callout: Callout, y: float, down: float, width: float) -> None:
    """A frame around a place, a leader along its left edge, and words at the leader's end."""
    x, top, _, _ = callout.box
    with drawing.group(data_mark=callout.name):
        draw_frame(drawing, callout, down)
        drawing.path(f"M{x - 2:g} {y + 3:g}V{top + down:g}", stroke_width=1.2, **EDGE)
        left = _left(callout.box, callout.words, width)
        drawing.text(left, y, callout.words, fill=ACCENT, font_weight="bold")


def _name(place: Sequence) -> str:
    return " ".join(number(item) if isinstance(item, float) else str(item) for item in place)


def _summary(places: Collection[tuple]) -> str:
    """Items of the places, in few words: "(A, B and C; 0 to 11)"."""
    by_length = dict.fromkeys(map(len, places))
    shown = []
    for length in by_length:
        columns = zip(*(place for place in places if len(place) == length), strict=True)
        shown.append(f"({'; '.join(_items(dict.fromkeys(column)) for column in columns)})")
    return " or ".join(shown) or "none"


def _items(items: dict) -> str:
    if all(isinstance(item, int) for item in items):
        low, high = min(items), max(items)
        if high - low + 1 == len(items) > 2:
            return f"{low} to {high}"
    return listing([str(item) for item in items], 12)
