"""Sorted rows: the rows of a step in the batch's order, and sorted by the slot of their adapter."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, MAX_WIDTH, sheet
from minivllm.lab.viz.draw.palette import GREY, INK, LINE, OKABE_ITO, PAPER
from minivllm.lab.viz.draw.svg import Drawing
from minivllm.lab.viz.draw.wording import count
from minivllm.utils.validation import check, is_int

NAMES = 64
BOX = 22
APART = 46
WIDEST = 40
NARROWEST = 16
NONE = "none"

Strip = list[tuple[int, int]]  # row and slot, from left to right


def sorted_rows(
    slots: Sequence[int], names: Sequence[str], title: str | None = None, mark: Sequence[Mark] = ()
) -> Figure:
    """Draw each row of a step twice: where it is in the batch, and where among its adapter's.

    Args:
        slots: of each row's adapter, in the batch's order; -1 for a row without one.
        names: of the adapters, by slot.
        title, mark: what it shows, and rows to point at: ("batch" or "sorted", row, text).

    Raises:
        ValueError: without rows, with more than 50, or for a slot that has no name.
    """
    most = (MAX_WIDTH - 2 * MARGIN - NAMES) // NARROWEST
    check(0 < len(slots) <= most, "slots", slots, f"1 to {most} rows")
    ok = all(is_int(slot, -1) and slot < len(names) for slot in slots)
    check(ok, "slots", slots, f"-1, or a number of the {len(names)} names")
    batch: Strip = list(enumerate(slots))
    ordered = sorted(batch, key=lambda pair: pair[1])
    segments = [
        f"{_name(slot, names)}: {_rows([row for row, _ in pairs])}"
        for slot, pairs in _segments(ordered)
    ]
    num = len(set(slots) - {-1})
    head = "Rows of a step, sorted by adapter"
    facts = f"{count(len(slots), 'row')}, {count(num, 'adapter')}"
    drawing = _drawing(
        batch, ordered, names, head=head, facts=facts, alt=f"{head}. {'; '.join(segments)}."
    )
    return finish(drawing, "\n".join([head, facts, *segments]), title, mark)


def _name(slot: int, names: Sequence[str]) -> str:
    return NONE if slot < 0 else names[slot]


def _rows(rows: Sequence[int]) -> str:
    return f"row{'s' if len(rows) > 1 else ''} {' '.join(map(str, rows))}"


def _segments(strip: Strip) -> list[tuple[int, Strip]]:
    """Neighbours with the same slot."""
    return [(slot, list(pairs)) for slot, pairs in groupby(strip, lambda pair: pair[1])]


def _drawing(
    batch: Strip, ordered: Strip, names: Sequence[str], head: str, facts: str, alt: str
) -> Drawing:
    box = min(WIDEST, (MAX_WIDTH - 2 * MARGIN - NAMES) / len(batch))
    left = MARGIN + NAMES
    upper = HEADER_HEIGHT + 18
    lower = upper + BOX + APART
    drawing = sheet(head, facts, alt, left + box * len(batch) + 60, lower + BOX + 22)
    place = {row: index for index, (row, _) in enumerate(ordered)}
    for row, slot in batch:
        x, y = left + box * (row + 0.5), upper + BOX
        line = {"stroke": LINE if slot < 0 else OKABE_ITO[slot % len(OKABE_ITO)]}
        drawing.path(f"M{x:g} {y + 2}L{left + box * (place[row] + 0.5):g} {lower - 2}", **line)
    for name, strip, y, label in (
        ("batch", batch, upper, upper - 6),
        ("sorted", ordered, lower, lower + BOX + 14),
    ):
        drawing.text(MARGIN, y + 15, name, font_weight="bold")
        for index, (row, slot) in enumerate(strip):
            x = left + box * index
            fill = PAPER if slot < 0 else OKABE_ITO[slot % len(OKABE_ITO)]
            drawing.rect(x + 1, y, box - 2, BOX, rx=2, fill=fill, stroke=INK)
            drawing.place((name, row), x + 1, y, box - 2, BOX)
            drawing.rect(x + box / 2 - 8, y + 4, 16, BOX - 8, rx=2, fill=PAPER)
            drawing.text(x + box / 2, y + 15, row, font_size=11, text_anchor="middle")
        _draw_names(drawing, strip, names, left=left, box=box, y=label)
    return drawing


def _draw_names(
    drawing: Drawing, strip: Strip, names: Sequence[str], left: float, box: float, y: float
) -> None:
    """The adapter of each segment, above or below it."""
    x = left
    for slot, pairs in _segments(strip):
        room = box * len(pairs)
        drawing.text(x + 2, y, _name(slot, names), room - 2, fill=GREY, font_size=11)
        x += room
