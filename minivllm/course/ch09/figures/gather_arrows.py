"""Gather arrows: from the slots of a pool to the positions of each sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, sheet
from minivllm.lab.viz.draw.palette import GREY, LINE, OKABE_ITO, PAPER
from minivllm.utils.validation import check

SLOT = 17
BLOCK_GAP = 6
DROP = 70


def gather_arrows(
    slots: Mapping[str, Sequence[int]], num_blocks: int, block_size: int, title: str | None = None,
    mark: Sequence[Mark] = (),
) -> Figure:  # fmt: skip
    """Draw a pool's slots above, and under it each sequence's K in the order of its positions.

    Args:
        slots: by sequence, the slot of each of its positions.
        num_blocks: blocks of the pool that are drawn, from 0.
        block_size: slots per block.
        title, mark: what it shows, and places to point at: (slot, text) or (sequence, position,
            text).

    Raises:
        ValueError: if a slot is not in one of these blocks.
    """
    for seq_id, own in slots.items():
        ok = all(0 <= slot < num_blocks * block_size for slot in own)
        check(ok, f"slots[{seq_id!r}]", own, f"slots below {num_blocks * block_size}")

    def left(slot: int) -> int:
        return MARGIN + slot * SLOT + slot // block_size * BLOCK_GAP

    gathered = sum(map(len, slots.values()))
    name = "Gather: slots of the pool become one row for each sequence"
    shared = gathered - len({slot for own in slots.values() for slot in own})
    facts = f"{gathered} slots are copied, {shared} of them twice"
    under = sum(len(own) + 1 for own in slots.values()) * SLOT
    right = max(left(num_blocks * block_size), MARGIN + under)
    top = HEADER_HEIGHT + 16
    bottom = top + SLOT + DROP
    drawing = sheet(name, facts, f"{name}; {facts}.", right, bottom + SLOT + 26)
    for block in range(num_blocks):
        drawing.text(left(block * block_size), top - 4, f"block {block}", font_size=11, fill=GREY)
    for slot in range(num_blocks * block_size):
        drawing.rect(left(slot), top, SLOT - 1, SLOT, fill=PAPER, stroke=LINE)
        drawing.place((slot,), left(slot), top, SLOT - 1, SLOT)
    x = MARGIN
    for index, (seq_id, own) in enumerate(slots.items()):
        colour = OKABE_ITO[index % len(OKABE_ITO)]
        drawing.text(x, bottom + SLOT + 16, f"{seq_id}: positions 0 to {len(own) - 1}")
        for position, slot in enumerate(own):
            drawing.place((seq_id, position), x, bottom, SLOT - 1, SLOT)
            middle = x + SLOT / 2
            start = left(slot) + SLOT / 2
            drawing.path(f"M{start:g} {top + SLOT}L{middle:g} {bottom}", stroke=colour, fill="none")
            drawing.rect(left(slot), top, SLOT - 1, SLOT, fill=colour, fill_opacity=0.4)
            drawing.rect(x, bottom, SLOT - 1, SLOT, fill=colour, fill_opacity=0.4, stroke=GREY)
            x += SLOT
        x += SLOT
    text = "\n".join(f"{seq_id}: {' '.join(map(str, own))}" for seq_id, own in slots.items())
    return finish(drawing, f"{name}\n{facts}\n{text}", title, mark)
