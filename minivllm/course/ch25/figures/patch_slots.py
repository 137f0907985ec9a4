"""Patch slots: the patches of a picture, and the slots of blocks that hold their K and V."""

from __future__ import annotations

from collections.abc import Sequence

from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, box_swatch, sheet
from minivllm.lab.viz.draw.palette import GREY, INK, LINE, PAPER
from minivllm.lab.viz.draw.wording import count
from minivllm.trace import Trace
from minivllm.utils.validation import check

BOX = 26
GAP = 40  # between the picture and the blocks
NAME = 64  # of a block


def patch_slots(
    trace: Trace,
    seq_id: str,
    colours: Sequence[Sequence[str]],
    step: int = 0,
    title: str | None = None,
    mark: Sequence[Mark] = (),
) -> Figure:
    """Draw a sequence's first picture in patches, and beside it the blocks of its prompt.

    Args:
        trace: of a run in which the sequence has a picture.
        seq_id: the sequence.
        colours: of each patch, such as "#aabbcc", in rows.
        step: after whose planning the blocks are drawn.
        title, mark: what it shows, and places to point at: ("picture" or "slot", patch, text).

    Raises:
        ValueError: for a sequence without a picture, or with another number of patches.
    """
    seq = trace.state_at(step, "schedule").sequences[seq_id]
    check(seq.mm_items, "seq_id", seq_id, "a sequence with a picture")
    name, offset, length = seq.mm_items[0]
    patches = [colour for row in colours for colour in row]
    check(len(patches) == length, "colours", f"{len(patches)} patches", f"{length}, as the prompt")
    size = trace.block_size
    num_rows, num_columns = len(colours), len(colours[0])
    head = "Patches of a picture, and the slots of their K and V"
    facts = f"{length} patches from position {offset} on"
    blocks = list(enumerate(seq.block_ids))
    lines = [_words(seq.token_ids, offset, length, block) for block in _spans(blocks, size)]
    left = MARGIN + num_columns * BOX + GAP
    top = HEADER_HEIGHT + 24
    height = max(num_rows, len(blocks)) * BOX
    drawing = sheet(
        head,
        facts,
        f"{head}: {facts}. {'; '.join(lines)}.",
        right=left + NAME + size * BOX,
        bottom=top + height,
        legend=[
            (box_swatch(fill=PAPER, stroke=LINE), "slot of a text token"),
            (box_swatch(fill="#9fc5de", stroke=INK), "number: the patch whose K and V it has"),
        ],
    )
    drawing.text(MARGIN, top - 6, name, fill=GREY, font_size=11)
    drawing.text(left, top - 6, "block", fill=GREY, font_size=11)
    for patch, colour in enumerate(patches):
        row, column = divmod(patch, num_columns)
        x, y = MARGIN + column * BOX, top + row * BOX
        drawing.rect(x, y, BOX, BOX, f"patch {patch}", fill=colour, stroke=PAPER)
        _number(drawing, x, y, patch, colour)
        drawing.place(("picture", patch), x, y, BOX, BOX)
    for logical, block_id in blocks:
        y = top + logical * BOX
        drawing.text(left, y + 17, block_id, font_weight="bold")
        for slot in range(size):
            position = logical * size + slot
            patch = position - offset
            x = left + NAME + slot * BOX
            holds = 0 <= patch < length
            fill = patches[patch] if holds else PAPER
            told = f"position {position}" if position < len(seq.token_ids) else "empty"
            drawing.rect(x + 1, y + 1, BOX - 2, BOX - 2, told, rx=2, fill=fill, stroke=LINE)
            if holds:
                _number(drawing, x, y, patch, fill)
                drawing.place(("slot", patch), x, y, BOX, BOX)
    return finish(drawing, "\n".join([head, facts, *lines]), title, mark)


def _spans(blocks, size: int):
    return [(block_id, range(logical * size, (logical + 1) * size)) for logical, block_id in blocks]


def _words(token_ids, offset: int, length: int, block) -> str:
    """ "block 3: text, text, patches 0 to 5"."""
    block_id, positions = block
    held = [position - offset for position in positions if 0 <= position - offset < length]
    num_text = sum(position < len(token_ids) for position in positions) - len(held)
    parts = [count(num_text, "text token")] if num_text else []
    parts += [f"patches {held[0]} to {held[-1]}"] if held else []
    return f"block {block_id}: {', '.join(parts) or 'empty'}"


def _number(drawing, x: float, y: float, patch: int, colour: str) -> None:
    """A patch's number, in the one of black and white that can be read on its colour."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    ink = "#ffffff" if 0.30 * red + 0.59 * green + 0.11 * blue < 140 else INK
    look = {"fill": ink, "font_size": 11, "text_anchor": "middle"}
    drawing.text(x + BOX / 2, y + BOX / 2 + 4, patch, **look)
