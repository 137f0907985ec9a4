"""The block grid: the whole pool, who holds which block, and how full each one is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from minivllm.kv.block_table import cdiv
from minivllm.records import BlockCopied, BlocksAllocated
from minivllm.trace import Trace
from minivllm.viz import blocks as look
from minivllm.viz.figure import Figure
from minivllm.viz.layout import (
    HEADER_HEIGHT,
    MARGIN,
    MAX_WIDTH,
    Legend,
    draw_header,
    header_width,
)
from minivllm.viz.palette import GREY, LINE, PAPER
from minivllm.viz.snapshot import HeldBlock, Snapshot, take_snapshot
from minivllm.viz.svg import Drawing
from minivllm.viz.wording import count, pad

MAX_DETAILED = 64  # more blocks than this are drawn without their slots
MAX_WITH_TOKENS = 32
GAP = 8

Box = tuple[float, float, float, float]  # x, y, width, height


def block_grid(
    trace: Trace,
    step: int | None = None,
    after: str = "schedule",
    decode: Callable[[int], str] | None = None,
) -> Figure:
    """Draw the pool as a grid of physical blocks.

    A held block shows its id, the letter of its owner, and its slots: light if filled before, solid
    if this step writes them, white if empty. A thick black edge is a block allocated in this step;
    hatching and ×N one that N sequences share. Free blocks are bare, with a dotted edge if the
    prefix cache can still find what they hold; block 0 is the null block.
    Of a large pool, blocks beyond the highest one ever used are left out, and it says so.

    Args:
        trace: what the engine wrote.
        step: counted from 0; None is the last one, -1 the moment before the first.
        after: "schedule" (what the forward pass sees) or "update" (the end of the step).
        decode: turns a token id into text, to be shown inside the slots of a small pool.

    Raises:
        ValueError: for a trace without steps, or a step or moment that it does not have.
    """
    snapshot = take_snapshot(trace, step, after)
    pool = _Pool.of(trace, snapshot)
    return Figure(_svg(pool, decode), _text(pool), pool.alt)


@dataclass(frozen=True)
class _Pool:
    """The physical side of a snapshot: one entry per block, and what to say about them all."""

    snapshot: Snapshot
    holders: dict[int, list[HeldBlock]]
    num_drawn: int  # blocks; the rest of a large pool was never used

    @property
    def cached_and_free(self) -> set[int]:
        """Blocks that nobody holds and the prefix cache can still find."""
        return set(self.snapshot.cached - self.holders.keys())

    @classmethod
    def of(cls, trace: Trace, snapshot: Snapshot) -> _Pool:
        num_drawn = snapshot.num_blocks
        if num_drawn > MAX_DETAILED:
            used = [b for record in trace.of(BlocksAllocated) for b in record.block_ids]
            used += [record.dst for record in trace.of(BlockCopied)]
            num_drawn = min(num_drawn, cdiv(max(used, default=0) + 1, 20) * 20)
        return cls(snapshot, snapshot.holders, num_drawn)

    @property
    def detailed(self) -> bool:
        few = self.num_drawn <= MAX_DETAILED
        return few and self.snapshot.block_size <= look.MAX_SLOTS

    def block(self, block_id: int) -> HeldBlock | None:
        """What is in a block, as the one of its holders sees it that uses most of it."""
        return max(self.holders.get(block_id, ()), key=lambda b: b.num_used, default=None)

    def letters(self, block_id: int) -> str:
        """Who holds it: "A", "A B", "A B +2"."""
        letters = [held.owner.letter for held in self.holders[block_id]]
        return " ".join(letters[:2]) + (f" +{len(letters) - 2}" if len(letters) > 2 else "")

    @cached_property
    def blocks(self) -> list[HeldBlock]:
        return [self.block(block_id) for block_id in sorted(self.holders)]

    @property
    def title(self) -> str:
        return f"Block pool, {self.snapshot.moment}"

    @property
    def facts(self) -> str:
        """The numbers that matter, in one line."""
        held, usable = len(self.holders), self.snapshot.num_blocks - 1
        slots = held * self.snapshot.block_size
        used = sum(block.num_used for block in self.blocks)
        written = sum(block.num_written for block in self.blocks)
        shared = sum(block.ref_count > 1 for block in self.blocks)
        parts = [f"{held} of {count(usable, 'block')} held"]
        if held:
            parts.append(f"{used} of their {count(slots, 'slot')} used, {slots - used} empty")
        if written:
            parts.append(f"{written} written by this step")
        if shared:
            parts.append(f"{shared} shared")
        if self.cached_and_free:
            parts.append(f"{len(self.cached_and_free)} free but cached")
        return " · ".join(parts)

    @property
    def footnote(self) -> str:
        left_out = self.snapshot.num_blocks - self.num_drawn
        return f"{count(left_out, 'more block')} never used, not drawn." if left_out else ""

    @property
    def alt(self) -> str:
        owners = [t.owner.letter for t in self.snapshot.tables if t.blocks]
        who = ", ".join(owners) if len(owners) <= 8 else count(len(owners), "sequence")
        held, *rest = self.facts.split(" · ")
        return f"{self.title}: " + "; ".join([f"{held} by {who}" if who else held, *rest]) + "."


# -- drawn ---------------------------------------------------------------------------------------


def _svg(pool: _Pool, decode: look.Decode) -> str:
    with_tokens = decode is not None and pool.detailed and pool.num_drawn <= MAX_WITH_TOKENS
    width, height = _tile_size(pool, with_tokens)
    fit = int((MAX_WIDTH - 2 * MARGIN + GAP) // (width + GAP))
    # Round numbers of columns, so that an id can be found without counting.
    columns = next(n for n in (20, 10, 8, 5, 4, 2, 1) if n <= fit)
    lines = cdiv(pool.num_drawn, columns)
    columns = min(columns, pool.num_drawn)
    sheet_width = max(
        2 * MARGIN + columns * (width + GAP) - GAP, header_width(pool.title, pool.facts)
    )
    entries = look.legend_entries(pool.blocks, any_cached=bool(pool.cached_and_free))
    legend = Legend(entries, sheet_width - 2 * MARGIN)
    bottom = HEADER_HEIGHT + lines * (height + GAP)
    sheet_height = bottom + legend.height + (16 if pool.footnote else 0) + MARGIN / 2
    drawing = Drawing(sheet_width, sheet_height, pool.title, pool.alt)
    draw_header(drawing, pool.title, pool.facts)
    with drawing.group(fill=GREY, font_size=11):  # what most texts have in common
        for block_id in range(pool.num_drawn):
            line, column = divmod(block_id, columns)
            x, y = MARGIN + column * (width + GAP), HEADER_HEIGHT + line * (height + GAP)
            if block_id in pool.holders:
                _draw_held(drawing, pool, block_id, (x, y, width, height), decode, with_tokens)
            else:
                cached = block_id in pool.snapshot.cached
                _draw_bare(drawing, block_id, (x, y, width, height), cached)
    if pool.footnote:
        drawing.text(MARGIN, bottom + 10, pool.footnote, fill=GREY)
        bottom += 16
    legend.draw(drawing, MARGIN, bottom)
    return drawing.to_string()


def _tile_size(pool: _Pool, with_tokens: bool) -> tuple[float, float]:
    if not pool.detailed:
        return 38, 44
    size = pool.snapshot.block_size
    slot_width = look.TEXT_SLOT_WIDTH if with_tokens else 18
    slots = min(size, look.SLOTS_PER_LINE) * slot_width
    return max(62, slots + 8), 22 + look.slot_lines(size) * look.SLOT_HEIGHT + 6


def _draw_held(
    drawing: Drawing, pool: _Pool, block_id: int, box: Box, decode: look.Decode, with_tokens: bool
) -> None:
    block = pool.block(block_id)
    x, y, width, height = box
    drawing.rect(*box, rx=4, fill=PAPER, **look.outline(block))
    drawing.text(x + 5, y + 15, block_id)
    times = f"×{block.ref_count}" if block.ref_count > 1 else ""
    bold = {"fill": block.owner.edge, "font_size": 12, "font_weight": "bold"}
    if pool.detailed:
        letters = f"{pool.letters(block_id)} {times}".strip()
        drawing.text(x + width - 5, y + 15, letters, text_anchor="end", **bold)
        if block.ref_count > 1:
            drawing.hatch(x + 2, y + 21, width - 4, height - 23)
        look.draw_slots(drawing, x + 4, y + 24, width - 8, block, decode, with_tokens)
    else:
        letters = block.owner.letter + times
        drawing.text(x + width / 2, y + 29, letters, text_anchor="middle", **bold)
        look.draw_fill_bar(drawing, x + 4, y + 34, width - 8, 6, block)


def _draw_bare(drawing: Drawing, block_id: int, box: Box, cached: bool) -> None:
    """A free block, or the null block, which nobody ever holds."""
    fill = "#eeeeee" if block_id == 0 else PAPER
    x, y, width, _ = box
    drawing.rect(*box, rx=4, fill=fill, **(look.DOTTED if cached else {"stroke": LINE}))
    drawing.text(x + 5, y + 15, block_id)
    if block_id == 0:
        drawing.text(x + width - 5, y + 15, "null", text_anchor="end")


# -- in characters -------------------------------------------------------------------------------


def _text(pool: _Pool) -> str:
    cells = [_text_cell(pool, block_id) for block_id in range(pool.num_drawn)]
    cell_width = max(len(cell) for cell in cells)
    fit = max(1, 96 // (cell_width + 2))
    columns = next(n for n in (20, 10, 8, 5, 4, 2, 1) if n <= fit)
    lines = [pool.title, pool.facts, ""]
    for first in range(0, len(cells), columns):
        line = "  ".join(pad(cell, cell_width) for cell in cells[first : first + columns])
        lines.append(line.rstrip())
    legend = "■ filled  + written by this step  □ empty  · free" if pool.detailed else "· free"
    legend += "  ∘ free, but cached" if pool.cached_and_free else ""
    if any(block.is_new for block in pool.blocks):
        legend += "  ! new in this step"
    if any(block.ref_count > 1 for block in pool.blocks):
        legend += "  ×N shared by N sequences"
    lines += [pool.footnote] if pool.footnote else []
    return "\n".join([*lines, "", legend])


def _text_cell(pool: _Pool, block_id: int) -> str:
    name = f"{block_id:>{len(str(pool.num_drawn - 1))}}"
    if block_id == 0:
        return f"{name} null"
    block = pool.block(block_id)
    if block is None:
        return f"{name} {'∘' if block_id in pool.snapshot.cached else '·'}"
    shared = f"×{block.ref_count}" if block.ref_count > 1 else ""
    new = "!" if block.is_new else ""
    slots = "".join(look.TEXT_MARK[slot.state] for slot in block.slots) if pool.detailed else ""
    letters = pool.letters(block_id) if pool.detailed else block.owner.letter
    return " ".join(part for part in (name, letters, slots + shared + new) if part)
