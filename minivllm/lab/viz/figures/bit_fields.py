"""Bit fields: words as rows of boxes, as wide as the bits that a number takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, sheet
from minivllm.lab.viz.draw.palette import GREY, INK, OKABE_ITO, PAPER
from minivllm.lab.viz.draw.svg import text_width
from minivllm.lab.viz.draw.wording import count
from minivllm.utils.validation import check, is_int

# Sizes in pixels.
LENGTH = 544
ROW = 46
BOX = 26

COLOURS = (*OKABE_ITO, "#dadada")  # eight, as a word has eight numbers of 4 bits


def bit_fields(
    words: Mapping[str, Sequence[tuple[str, int]]], title: str | None = None,
    mark: Sequence[Mark] = (),
) -> Figure:  # fmt: skip
    """Draw the numbers that are packed into words; bit 0 is at the right, as in a written number.

    Args:
        words: by name, the fields of a word, the one in the lowest bits first: a label, and bits.
            Fields with the same label have the same colour.
        title, mark: what it shows, and fields to point at: (name of the word, place of the field
            from 0, the lowest first, text).

    Raises:
        ValueError: without words, or if they have unlike numbers of bits.
    """
    sizes = {name: sum(bits for _, bits in fields) for name, fields in words.items()}
    ok = len(set(sizes.values())) == 1 and all(
        is_int(bits, 1) for fields in words.values() for _, bits in fields
    )
    check(ok, "words", words, "words of the same number of bits")
    size = next(iter(sizes.values()))
    labels = list(dict.fromkeys(label for fields in words.values() for label, _ in fields))
    colours = {label: COLOURS[i % len(COLOURS)] for i, label in enumerate(labels)}
    head = "Words"
    facts = f"{count(size, 'bit')} each, the lowest at the right"
    told = {
        name: " ".join(f"{label}:{bits}" for label, bits in reversed(fields))
        for name, fields in words.items()
    }
    alt = f"{head}, from the highest bits: {'; '.join(f'{n}: {t}' for n, t in told.items())}."
    names = max(text_width(name, bold=True) for name in words) + 14
    left = MARGIN + names
    top = HEADER_HEIGHT + 20
    bit = LENGTH / size
    drawing = sheet(head, facts, alt, left + LENGTH, top + ROW * len(words) + 2)
    for index, (name, fields) in enumerate(words.items()):
        y = top + ROW * index
        x = left + LENGTH
        first = 0
        drawing.text(MARGIN, y + 17, name, font_weight="bold")
        for place, (label, bits) in enumerate(fields):
            width = bits * bit
            x -= width
            drawing.rect(x + 1, y, width - 2, BOX, rx=3, fill=colours[label], stroke=INK)
            drawing.place((name, place), x + 1, y, width - 2, BOX)
            room = min(width - 6, text_width(label) + 10)
            drawing.rect(x + (width - room) / 2, y + 5, room, BOX - 10, rx=2, fill=PAPER)
            drawing.text(x + width / 2, y + 17, label, room, text_anchor="middle")
            drawing.text(x + width - 3, y - 3, first, fill=GREY, font_size=11, text_anchor="end")
            first += bits
    width = max(map(len, words)) + 2
    lines = [head, facts, *(f"{name:{width}}{fields}" for name, fields in told.items())]
    return finish(drawing, "\n".join(lines), title, mark)
