"""Gather arrows: from the slots of a pool to the positions of each sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minivllm.lab.viz.draw.figure import Figure
from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, draw_header, header_width
from minivllm.lab.viz.draw.palette import GREY, LINE, OKABE_ITO, PAPER
from minivllm.lab.viz.draw.svg import Drawing
from minivllm.utils.validation import check

SLOT, BLOCK_GAP, DROP = 17, 6, 70


def gather_arrows(slots: Mapping[str, Sequence[int]], num_blocks: int, block_size: int) -> Figure:
    """Draw a pool's slots above, and under it each sequence's K in the order of its positions.

    Args:
        slots: by sequence, the slot of each of its positions.
        num_blocks: blocks of the pool that are drawn, from 0.
        block_size: slots per block.

    Raises:
        ValueError: if a slot is not in one of these blocks.
    """
    for name, own in slots.items():
        ok = all(0 <= slot < num_blocks * block_size for slot in own)
        check(ok, f"slots[{name!r}]", own, f"slots below {num_blocks * block_size}")

    def left(slot: int) -> int:
        return MARGIN + slot * SLOT + slot // block_size * BLOCK_GAP

    gathered = sum(map(len, slots.values()))
    title = "Gather: slots of the pool become one row for each sequence"
    shared = gathered - len({slot for own in slots.values() for slot in own})
    facts = f"{gathered} slots are copied, {shared} of them twice"
    under = sum(len(own) + 1 for own in slots.values()) * SLOT
    width = max(left(num_blocks * block_size), 2 * MARGIN + under, header_width(title, facts))
    top = HEADER_HEIGHT + 16
    bottom = top + SLOT + DROP
    drawing = Drawing(width + MARGIN, bottom + SLOT + 34, title, f"{title}; {facts}.")
    draw_header(drawing, title, facts)
    for block in range(num_blocks):
        drawing.text(left(block * block_size), top - 4, f"block {block}", font_size=11, fill=GREY)
    for slot in range(num_blocks * block_size):
        drawing.rect(left(slot), top, SLOT - 1, SLOT, fill=PAPER, stroke=LINE)
    x = MARGIN
    for index, (name, own) in enumerate(slots.items()):
        colour = OKABE_ITO[index % len(OKABE_ITO)]
        drawing.text(x, bottom + SLOT + 16, f"{name}: positions 0 to {len(own) - 1}")
        for slot in own:
            middle = x + SLOT / 2
            start = left(slot) + SLOT / 2
            drawing.path(f"M{start:g} {top + SLOT}L{middle:g} {bottom}", stroke=colour, fill="none")
            drawing.rect(left(slot), top, SLOT - 1, SLOT, fill=colour, fill_opacity=0.4)
            drawing.rect(x, bottom, SLOT - 1, SLOT, fill=colour, fill_opacity=0.4, stroke=GREY)
            x += SLOT
        x += SLOT
    text = "\n".join(f"{name}: {' '.join(map(str, own))}" for name, own in slots.items())
    return Figure(drawing.to_string(), f"{title}\n{facts}\n{text}", f"{title}; {facts}.")
