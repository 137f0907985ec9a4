"""The block grid: the whole pool, which sequence holds which block, and how full each one is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minivllm.lab.viz.blocks import tiles as look
from minivllm.lab.viz.blocks.pool import (
    SLOT_WIDTH,
    Pool,
    draw_map,
    draw_tile,
    group_keys,
    groups_legend,
    map_legend,
    tile_size,
)
from minivllm.lab.viz.blocks.snapshot import take_snapshot
from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, MAX_WIDTH, sheet
from minivllm.lab.viz.draw.palette import GREY
from minivllm.lab.viz.draw.svg import Drawing
from minivllm.lab.viz.draw.wording import ordinal, pad
from minivllm.trace import Trace
from minivllm.utils.math_utils import cdiv

MAX_TILES = 160  # of more blocks there is a map
MAX_WITH_TOKENS = 32
GAP = 8
MAP_COLUMNS = 50
MAP_CELL = 14


def block_grid(
    trace: Trace,
    step: int | None = None,
    after: str = "schedule",
    decode: Callable[[int], str] | None = None,
    title: str | None = None,
    mark: Sequence[Mark] = (),
) -> Figure:
    """Draw the pool as a grid of physical blocks.

    A held block shows its id, the letter of its owner, and its slots: light if filled before, solid
    if this step writes them, white if empty. A thick black edge is a block allocated in this step;
    hatching and ×N one that N sequences share. Free blocks are bare; block 0 is the null block. A
    dotted edge is a free block that the prefix cache can still find: the letter of its last owner,
    what it holds in pale, and its place in the free queue ("2nd": one other is reused before it).
    Of several KV cache groups, a small letter says whose block it is. A dashed edge is a block that
    a sliding window has given back in this step.
    Of a large pool, blocks beyond the highest one ever used are left out, and it says so.

    Args:
        trace: what the engine wrote.
        step: counted from 0; None is the last one, -1 the moment before the first.
        after: "schedule" (what the forward pass sees) or "update" (the end of the step).
        decode: turns a token id into text, to be shown inside the slots of a small pool.
        title, mark: what it shows, and blocks to point at: (block id, text).

    Raises:
        ValueError: for a trace without steps, or a step or moment that it does not have.
    """
    snapshot = take_snapshot(trace, step, after)
    pool = Pool.of(trace, snapshot)
    draw = _draw_tiles if pool.num_drawn <= MAX_TILES else _draw_map
    return finish(draw(pool, decode), _text(pool), title, mark)


# -- drawn ---------------------------------------------------------------------------------------


def _draw_tiles(pool: Pool, decode: look.Decode) -> Drawing:
    with_tokens = decode is not None and pool.detailed and pool.num_drawn <= MAX_WITH_TOKENS
    width, height = tile_size(pool, look.TEXT_SLOT_WIDTH if with_tokens else SLOT_WIDTH)
    fit = int((MAX_WIDTH - 2 * MARGIN + GAP) // (width + GAP))
    # Round numbers of columns, so that an id can be found without counting.
    columns = next(n for n in (20, 10, 8, 5, 4, 2, 1) if n <= fit)
    lines = cdiv(pool.num_drawn, columns)
    columns = min(columns, pool.num_drawn)
    entries = look.legend_entries(pool.blocks, any_cached=bool(pool.cached_and_free))
    entries += groups_legend(pool.snapshot) + _legend_of_skipped(pool)
    drawing = _paper(pool, columns * (width + GAP) - GAP, lines * (height + GAP), entries)
    with drawing.group(fill=GREY, font_size=11):  # what most texts have in common
        for block_id in range(pool.num_drawn):
            line, column = divmod(block_id, columns)
            x = MARGIN + column * (width + GAP)
            y = HEADER_HEIGHT + line * (height + GAP)
            block = pool.block(block_id)
            edge = look.CHANGED if block is not None and block.is_new else None
            edge = look.GIVEN_BACK if block_id in pool.snapshot.skipped else edge
            draw_tile(
                drawing,
                pool,
                block_id,
                box=(x, y, width, height),
                edge=edge,
                decode=decode,
                with_tokens=with_tokens,
            )
            drawing.place((block_id,), x, y, width, height)
    return drawing


def _draw_map(pool: Pool, _: look.Decode) -> Drawing:
    lines = cdiv(pool.num_drawn, MAP_COLUMNS)
    names = 44
    entries = map_legend([pool])
    new = {block.block_id: look.CHANGED for block in pool.blocks if block.is_new}
    if new:
        entries.append((look.changed_swatch, "allocated in this step"))
    entries += _legend_of_skipped(pool)
    drawing = _paper(pool, names + MAP_COLUMNS * MAP_CELL, lines * MAP_CELL + GAP, entries)
    with drawing.group(fill=GREY, font_size=11, text_anchor="end"):
        for line in range(lines):
            y = HEADER_HEIGHT + line * MAP_CELL + 11
            drawing.text(MARGIN + names - 8, y, line * MAP_COLUMNS)
    draw_map(
        drawing,
        pool,
        x=MARGIN + names,
        y=HEADER_HEIGHT,
        columns=MAP_COLUMNS,
        cell=MAP_CELL,
        edges=new | dict.fromkeys(pool.snapshot.skipped, look.GIVEN_BACK),
    )
    return drawing


def _legend_of_skipped(pool: Pool) -> list:
    if not pool.snapshot.skipped:
        return []
    return [(look.given_back_swatch, "given back in this step: behind the window")]


def _paper(pool: Pool, width: float, height: float, entries: list) -> Drawing:
    """The header above the blocks, the footnote and the legend below."""
    right, bottom = MARGIN + width, HEADER_HEIGHT + height
    below = 16 if pool.footnote else 0
    drawing = sheet(
        pool.title, pool.facts, pool.alt, right=right, bottom=bottom + below, legend=entries
    )
    if pool.footnote:
        drawing.text(MARGIN, bottom + 10, pool.footnote, fill=GREY)
    return drawing


# -- in characters -------------------------------------------------------------------------------


def _text(pool: Pool) -> str:
    cells = [_text_cell(pool, block_id) for block_id in range(pool.num_drawn)]
    cell_width = max(len(cell) for cell in cells)
    fit = max(1, 96 // (cell_width + 2))
    columns = next(n for n in (20, 10, 8, 5, 4, 2, 1) if n <= fit)
    lines = [pool.title, pool.facts, ""]
    for first in range(0, len(cells), columns):
        line = "  ".join(pad(cell, cell_width) for cell in cells[first : first + columns])
        lines.append(line.rstrip())
    legend = "■ filled  + written by this step  □ empty  · free" if pool.detailed else "· free"
    slots = [slot for block in pool.blocks for slot in block.slots] if pool.detailed else []
    if any(slot.state == "in flight" for slot in slots):
        legend += "  ~ in flight"
    legend += "  ∘A 2nd: free, but cached; place in the free queue" if pool.cached_and_free else ""
    if any(block.is_new for block in pool.blocks):
        legend += "  ! new in this step"
    if any(block.ref_count > 1 for block in pool.blocks):
        legend += "  ×N shared by N sequences"
    if pool.snapshot.skipped:
        legend += "  ↩ given back by a window in this step"
    if keys := group_keys(pool.snapshot):
        told = [f"{', '.join(names)} {kind}" for kind, names in keys.items()]
        legend += f"\ngroups: {'; '.join(told)}"
    lines += [pool.footnote] if pool.footnote else []
    return "\n".join([*lines, "", legend])


def _text_cell(pool: Pool, block_id: int) -> str:
    name = f"{block_id:>{len(str(pool.num_drawn - 1))}}"
    if block_id == 0:
        return f"{name} null"
    block = pool.block(block_id)
    if block is None:
        cached = pool.cached_and_free.get(block_id)
        back = "↩" * (block_id in pool.snapshot.skipped)
        if cached is None:
            return f"{name} ·{back}"
        return f"{name} ∘{cached.block.owner.letter} {ordinal(cached.place)}{back}"
    shared = f"×{block.ref_count}" if block.ref_count > 1 else ""
    new = "!" if block.is_new else ""
    slots = "".join(look.TEXT_MARK[slot.state] for slot in block.slots) if pool.detailed else ""
    letters = pool.label(block_id, 12).split(" ×")[0] if pool.detailed else block.owner.letter
    key = pool.group_key(block)
    return " ".join(part for part in (name, key, letters, slots + shared + new) if part)
