"""The block table: for each sequence, which physical block each of its logical blocks is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from minivllm.lab.translation import translated
from minivllm.lab.viz.blocks import tiles as look
from minivllm.lab.viz.blocks.snapshot import (
    BlockTables,
    HeldBlock,
    SequenceTable,
    Slot,
    choose,
    copy_note,
    physical,
    positions,
    progress,
    slots,
    take_snapshot,
)
from minivllm.lab.viz.blocks.tiles import Decode
from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, MAX_WIDTH, sheet
from minivllm.lab.viz.draw.palette import ACCENT, GREY, ON_DARK, PAPER
from minivllm.lab.viz.draw.svg import MONO_EM, SANS_EM, Drawing, text_width
from minivllm.lab.viz.draw.wording import TERMINAL, num_columns, pad, shorten, token_label
from minivllm.trace import Trace
from minivllm.utils.math_utils import cdiv
from minivllm.utils.validation import check

NAMES = 182  # width of what is to the left of the blocks
GAP = 10
WAY = 58  # height of the slots that a followed position leads to


def block_table(
    trace: Trace,
    step: int | None = None,
    after: str = "schedule",
    sequences: Iterable[str] | None = None,
    decode: Callable[[int], str] | None = None,
    title: str | None = None,
    mark: Sequence[Mark] = (),
    follow: tuple[str, int] | None = None,
) -> Figure:
    """Draw block tables: logical blocks and their tokens above, physical blocks below.

    Slots are light if filled before this step, solid if it writes them, white if empty. A thick
    black edge is an entry that this step changed, "copy of" what it was copied from; hatching and
    ×N a block that N sequences share. Of several KV cache groups each has a row. An empty dotted
    entry is null: a sliding window has left it behind; if it did so in this step, the edge is
    dashed, and inside is the block that went back to the pool. With many blocks, each entry shrinks
    to its two numbers and a bar of how full it is; beyond 120, entries are left out, and it says
    so.

    Args:
        trace: what the engine wrote.
        step: counted from 0; None is the last one, -1 the moment before the first.
        after: "schedule" (what the forward pass sees) or "update" (the end of the step).
        sequences: ids of the sequences to draw, in this order; None draws all that hold a block.
        decode: turns a token id into text, to be shown in place of the id.
        title, mark: what it shows, and entries to point at: (sequence, logical block, text), or
            (sequence, group's name, logical block, text) where there are several.
        follow: a sequence's letter and a position: the way from its token through the table to its
            slot is drawn, and the other entries are pale.

    Raises:
        ValueError: for a trace without steps, a step or moment that it does not have, a sequence
            that has not arrived by then, or a position to follow without a slot.
    """
    snapshot = take_snapshot(trace, step, after)
    tables = BlockTables.of(snapshot, choose(snapshot, sequences))
    found = [
        (block, slot)
        for block in tables.blocks
        for slot in block.slots
        if (block.owner.letter, slot.position) == follow
    ]
    ok = follow is None or (found and tables.detailed)
    check(ok, "follow", follow, "a sequence's letter and one of its positions, in small tables")
    drawing = _drawing(tables, decode, *found)
    return finish(drawing, _text(tables, decode), title, mark)


# -- drawn ---------------------------------------------------------------------------------------


def _drawing(
    tables: BlockTables, decode: look.Decode, way: tuple[HeldBlock, Slot] | None = None
) -> Drawing:
    width, height = _entry_size(tables, decode)
    fit = max(1, int((MAX_WIDTH - 2 * MARGIN - NAMES + GAP) // (width + GAP)))
    columns = min(fit, max((len(table.blocks) for table in tables.drawn), default=1) or 1)
    right = MARGIN + NAMES + columns * (width + GAP) - GAP
    lines = [max(1, cdiv(len(table.blocks), columns)) for table in tables.drawn]
    bottom = HEADER_HEIGHT + sum(lines) * height
    legend = look.legend_entries(tables.blocks)
    legend += look.legend_of_nulls(block for table in tables.drawn for block in table.blocks)
    below = (18 if tables.footnote else 0) + (WAY if way else 0)
    drawing = sheet(
        tables.title, tables.facts, tables.alt, right=right, bottom=bottom + below, legend=legend
    )
    y = HEADER_HEIGHT
    for table, num_lines in zip(tables.drawn, lines, strict=True):
        _draw_name(drawing, table, y, tables.detailed)
        for block in table.blocks:
            line, column = divmod(block.logical, columns)
            x = MARGIN + NAMES + column * (width + GAP)
            if block.is_null:
                _draw_null(
                    drawing, block, x,
                    y=y + line * height, width=width, detailed=tables.detailed,
                )  # fmt: skip
                drawing.place(table.key(block), x, y + line * height, width, height - 14)
                continue
            with drawing.group(**{} if way is None or block is way[0] else {"opacity": 0.45}):
                top = y + line * height
                if tables.detailed:
                    _draw_entry(drawing, block, x, y=top, width=width, decode=decode)
                else:
                    _draw_small_entry(drawing, block, x, y=top, width=width)
            if way and block is way[0]:
                way_x = x
                way_y = y + line * height
            drawing.place(table.key(block), x, y + line * height, width, height - 14)
        y += num_lines * height
    if way:
        block, slot = way
        _draw_way(drawing, block, slot, x=way_x, y=way_y, width=width, bottom=bottom)
    if tables.footnote:
        drawing.text(MARGIN, bottom + below - 8, tables.footnote, fill=GREY)
    return drawing


def _draw_way(
    drawing: Drawing, block: HeldBlock, slot: Slot, x: float, y: float, width: float, bottom: float
) -> None:
    """One arrow from a token to the table's entry, and one from there to its slot in the pool."""
    size = len(block.slots)
    columns = min(size, look.SLOTS_PER_LINE)
    offset = slot.position % size
    cell = width / columns
    token_x = x + (offset % columns + 0.5) * cell
    token_y = y + 16 + (offset // columns + 1) * look.SLOT_HEIGHT
    chip = y + _chip_top(block)
    top = bottom + 14
    line = {"fill": "none", "stroke": ACCENT, "stroke_width": 2}
    slot_top = token_y - look.SLOT_HEIGHT
    drawing.rect(token_x - cell / 2, slot_top, cell, look.SLOT_HEIGHT, rx=3, **line)
    drawing.rect(x, chip - 1, width, 24, rx=5, **line)
    room = (width - 4) / size  # the block in the pool: a box for each slot
    for index, other in enumerate(block.slots):
        left = x + 2 + index * room
        here = index == offset
        look_ = {"fill": ACCENT if here else PAPER, "stroke": ACCENT if here else GREY}
        drawing.rect(left + 1, top, room - 2, 18, rx=2, **look_)
        if size <= look.SLOTS_PER_LINE:
            ink = {"fill": ON_DARK if here else GREY, "text_anchor": "middle", "font_size": 11}
            drawing.text(left + room / 2, top + 13, other.slot, room - 4, **ink)
    ends = ((token_x, token_y, chip - 1), (x + 2 + (offset + 0.5) * room, chip + 23, top))
    for middle, start, end in ends:
        drawing.arrow(f"M{middle:g} {start:g}V{end:g}", (middle, end), (0, 1), ACCENT, 2)
    told = f"position {slot.position} = {block.logical} · {size} + {offset}: block "
    told += f"{block.block_id}, slot {block.block_id} · {size} + {offset} = {slot.slot}"
    most = float(drawing.root.get("width")) - MARGIN - text_width(told, bold=True)
    drawing.text(max(MARGIN, min(x, most)), top + 34, told, fill=ACCENT, font_weight="bold")


def _entry_size(tables: BlockTables, decode: look.Decode) -> tuple[float, float]:
    """Width and height of one entry, the gap below it included."""
    if not tables.detailed:
        return 34, 50
    slot_width = look.TEXT_SLOT_WIDTH
    if decode is None:
        ids = [str(slot.token) for b in tables.blocks for slot in b.slots if slot.token is not None]
        slot_width = max([24, *(len(token) * 11 * MONO_EM + 6 for token in ids)])
    size = tables.snapshot.max_block_size
    headers = [len(f"{b.logical} {positions(b)}") * 6.6 + 8 for b in tables.blocks]
    chips = [len(f"{physical(b)} {slots(b)}") * 6.6 + 16 for b in tables.blocks]
    copies = [
        2 * num_columns(copy_note(b)) * 11 * SANS_EM + 16 for b in tables.blocks if copy_note(b)
    ]
    width = max([min(size, look.SLOTS_PER_LINE) * slot_width, *headers, *chips, *copies])
    return width, 16 + look.slot_lines(size) * look.SLOT_HEIGHT + 16 + 22 + 18


def _draw_name(drawing: Drawing, table: SequenceTable, y: float, detailed: bool) -> None:
    """Badge, id and progress at the left; what the lines of an entry mean beside them."""
    owner = table.owner
    size = 26 if detailed else 22
    middle = y + (36 if detailed else 20)
    drawing.rect(MARGIN, middle - size / 2, size, size, rx=4, fill=owner.solid, stroke=owner.edge)
    drawing.text(
        MARGIN + size / 2, middle + 5, owner.letter, fill=owner.ink, text_anchor="middle",
        font_weight="bold", font_size=14 if len(owner.letter) == 1 else 11,
    )  # fmt: skip
    room = NAMES - 39
    if table.label is None:
        drawing.text(MARGIN + 33, middle - 2, shorten(owner.seq_id, 12), font_weight="bold")
    else:
        name = f"{shorten(owner.seq_id, 6)} {table.label.name}"
        drawing.text(MARGIN + 33, middle - 2, name, room, font_weight="bold")
    drawing.text(MARGIN + 33, middle + 12, progress(table), room, fill=GREY, font_size=11)
    with drawing.group(fill=GREY, font_size=11, text_anchor="end"):
        right = MARGIN + NAMES - 10
        if not table.blocks:
            drawing.text(right, y + 12, f"{table.seq.status}: no block")
        elif detailed and table.label is None:
            drawing.text(right, y + 12, "logical")
            drawing.text(right, y + _chip_top(table.blocks[0]) + 15, "physical")


def _draw_null(
    drawing: Drawing, block: HeldBlock, x: float, y: float, width: float, detailed: bool
) -> None:
    """An entry that a window has left behind, and which block went back if that was just now."""
    height = _chip_top(block) + 7 if detailed else 26
    with drawing.group(fill=GREY, font_size=11, text_anchor="middle"):
        drawing.text(x + width / 2, y + (12 if detailed else 10), block.logical)
        edge = look.LEFT_BEHIND if block.was is None else look.GIVEN_BACK
        top = y + (16 if detailed else 14)
        drawing.rect(x + 1, top, width - 2, height - 1, rx=4, fill=PAPER, **edge)
        if block.was is not None:
            drawing.text(x + width / 2, top + height / 2 + 4, block.was)


def _chip_top(block: HeldBlock) -> float:
    """Top of the physical block, below header, slots and arrow."""
    return 16 + look.slot_lines(len(block.slots)) * look.SLOT_HEIGHT + 16


def _draw_entry(
    drawing: Drawing, block: HeldBlock, x: float, y: float, width: float, decode: look.Decode
) -> None:
    """Logical index and positions, slots, an arrow, physical id and slot numbers."""
    drawing.text(x + 1, y + 12, block.logical, font_weight="bold")
    with drawing.group(fill=GREY, font_size=11, text_anchor="end"):
        drawing.text(x + width - 1, y + 12, positions(block))
    look.draw_slots(drawing, x, y + 16, width=width, block=block, decode=decode, labels=True)
    top = y + _chip_top(block)
    middle = x + width / 2
    drawing.path(
        f"M{middle:g} {top - 15:g}V{top - 3:g}M{middle - 4:g} {top - 7:g}L{middle:g} {top - 3:g}"
        f"L{middle + 4:g} {top - 7:g}", fill="none", stroke=GREY, stroke_width=1.5,
    )  # fmt: skip
    if copy_note(block):
        drawing.text(middle + 8, top - 4, copy_note(block), font_size=11, font_weight="bold")
    shared = block.ref_count > 1
    height = 28 if shared else 22
    edge = look.outline(block.is_new, block.owner.edge)
    drawing.rect(x + 1, top, width - 2, height, rx=4, fill=PAPER, **edge)
    if shared:
        drawing.hatch(x + 3, top + 19, width - 6, 7)
    drawing.text(x + 7, top + 15, physical(block), font_weight="bold")
    with drawing.group(fill=GREY, font_size=11, text_anchor="end"):
        drawing.text(x + width - 7, top + 15, slots(block))


def _draw_small_entry(drawing: Drawing, block: HeldBlock, x: float, y: float, width: float) -> None:
    """Logical index above, physical id and how full it is below."""
    edge = look.outline(block.is_new, block.owner.edge)
    drawing.rect(x, y + 14, width, 26, rx=3, fill=PAPER, **edge)
    with drawing.group(text_anchor="middle"):
        drawing.text(x + width / 2, y + 10, block.logical, fill=GREY, font_size=11)
        drawing.text(x + width / 2, y + 27, block.block_id, font_weight="bold")
    look.draw_fill_bar(drawing, x + 4, y + 31, width=width - 8, height=6, block=block)


# -- in characters -------------------------------------------------------------------------------


def _text(tables: BlockTables, decode: Decode) -> str:
    lines = [tables.title, tables.facts]
    for table in tables.drawn:
        group = f", {table.label.name}" if table.label else ""
        lines += ["", f"{table.owner.letter} {table.owner.seq_id}{group}: {progress(table)}"]
        if not table.blocks:
            lines.append(f"  {table.seq.status}: no block")
        elif tables.detailed:
            lines += _text_entries(table, decode)
        else:
            lines += _text_small_entries(table)
    empty = translated("□ empty")
    legend = ["+ written by this step", empty] if tables.detailed else ["logical→physical"]
    slots = [slot for block in tables.blocks for slot in block.slots] if tables.detailed else []
    legend += ["~ in flight"] if any(slot.state == "in flight" for slot in slots) else []
    if any(slot.is_placeholder for slot in slots):
        legend.append(f"{look.PLACEHOLDER_MARK} token not known yet")
    legend += ["! new in this step"] if any(b.is_new for b in tables.blocks) else []
    legend += ["null: left behind by a window"] if tables.num_left else []
    legend += ["×N shared by N sequences"] if any(b.ref_count > 1 for b in tables.blocks) else []
    lines += ["", tables.footnote] if tables.footnote else []
    return "\n".join([*lines, "", "  ".join(legend)])


def _text_entries(table: SequenceTable, decode: Decode) -> list[str]:
    """Four lines: logical block and positions, tokens, physical block and slots."""
    columns = []
    for block in table.blocks:
        if block.is_null:
            was = "" if block.was is None else f"was {block.was}"
            columns.append((f"{block.logical} ({positions(block)})", was, "null"))
            continue
        tokens = (
            _text_token(slot, decode) for slot in block.slots
        )  # fmt: skip
        columns.append((
            f"{block.logical} ({positions(block)})",
            " ".join(tokens),
            f"{physical(block)}{'!' * block.is_new} ({copy_note(block) or slots(block)})",
        ))  # fmt: skip
    lines: list[str] = []
    names = ("logical", "tokens", "physical")
    widths = [max(map(num_columns, column)) for column in columns]
    while columns:
        fit = 1
        while fit < len(columns) and 11 + sum(widths[: fit + 1]) + 3 * fit <= TERMINAL:
            fit += 1
        taken = columns[:fit]
        columns = columns[fit:]
        for name, cells in zip(names, zip(*taken, strict=True), strict=True):
            padded = (pad(cell, width) for cell, width in zip(cells, widths, strict=False))
            lines.append(f"  {name:<8} {' │ '.join(padded)}".rstrip())
        widths = widths[fit:]
    return lines


def _text_token(slot: Slot, decode: Decode) -> str:
    """A slot's token, and before it when it is written."""
    if slot.state == "empty" or (slot.is_draft and slot.token is None):
        return "□"
    when = "" if slot.state == "filled" else look.TEXT_MARK[slot.state]
    if slot.is_placeholder:
        return when + look.PLACEHOLDER_MARK
    return when + token_label(slot.token, decode, 12)


def _text_small_entries(table: SequenceTable) -> list[str]:
    lines = []
    line = " "
    for block in table.blocks:
        name = "null" if block.is_null else physical(block).replace(" ", "")
        entry = f" {block.logical}→{name}{'!' * block.is_new}"
        if len(line) + len(entry) > TERMINAL:
            lines.append(line)
            line = " "
        line += entry
    return [*lines, line]
