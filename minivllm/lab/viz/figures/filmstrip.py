"""The filmstrip: the pool and the block tables in a few steps, side by side, with what changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from minivllm.lab.viz.blocks import tiles as look
from minivllm.lab.viz.blocks.pool import (
    Edge,
    Pool,
    draw_map,
    draw_tile,
    groups_legend,
    map_legend,
    tile_size,
)
from minivllm.lab.viz.blocks.snapshot import take_snapshot
from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, MAX_WIDTH, sheet
from minivllm.lab.viz.draw.palette import GREY, PAPER, Owner
from minivllm.lab.viz.draw.svg import SANS_EM, Drawing
from minivllm.lab.viz.draw.wording import shorten
from minivllm.lab.viz.model.filmstrip_model import (
    MAX_TILES,
    FilmFrame,
    FilmstripModel,
    changed_blocks,
    eventful_steps,
    host_blocks,
    plan_of,
    strip_text,
)
from minivllm.lab.viz.model.timeline_model import read_history
from minivllm.trace import Trace
from minivllm.utils.math_utils import cdiv
from minivllm.utils.validation import check

MOST_STEPS = 12
SLOT_WIDTH = 12
GAP = 6
FRAME_GAP = 26
CAPTION = 40
MAX_MARKED = 60  # changed squares of a map; more would hide what is below
CHIP_WIDTH = 26
CHIP_HEIGHT = 18
HOST = 54
MAP_COLUMNS = 40
MAP_CELL = 6


def filmstrip(
    trace: Trace, steps: Iterable[int] | None = None, after: str = "schedule",
    title: str | None = None, mark: Sequence[Mark] = (),
) -> Figure:  # fmt: skip
    """Draw a few steps side by side: each one's plan, pool and block tables.

    Tiles and slots look as in ``block_grid``. A thick black edge is a block that a sequence got in
    this step, a dashed one a block given back. Below each pool are the blocks of the host, with
    arrows for what is swapped, and a row of block ids per sequence: its block table. A large pool
    becomes a map of small squares; lines of blocks that were never used are left out.

    Args:
        trace: what the engine wrote.
        steps: which ones, at most 12; None chooses up to 6 in which blocks changed hands.
        after: "schedule" (what the forward pass sees) or "update" (the end of the step).
        title, mark: what it shows, and blocks to point at: (step, block id, text).

    Raises:
        ValueError: for a trace without steps, more steps than fit, none, or one that it does not
            have.
    """
    history = read_history(trace)
    steps = eventful_steps(trace) if steps is None else list(steps)
    check(0 < len(steps) <= MOST_STEPS, "steps", steps, f"a list of 1 to {MOST_STEPS} steps")
    frames = []
    for step in steps:
        pool = Pool.of(trace, take_snapshot(trace, step, after), whole=False)
        changed = changed_blocks(trace, step, after)
        host = host_blocks(trace, step, after)
        frames.append(FilmFrame(step, plan_of(history, step), pool, *changed, host))
    strip = FilmstripModel(frames, after)
    return finish(_drawing(strip), strip_text(strip), title, mark)


# -- drawn ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sizes:
    """Size of a frame, and number of frames in a line."""

    columns: int
    tile: tuple[float, float]
    pool_width: float
    pool_height: float
    width: float
    height: float

    @classmethod
    def of(cls, strip: FilmstripModel) -> _Sizes:
        pool = strip.frames[0].pool
        if strip.as_map:
            columns = MAP_COLUMNS
            tile = (MAP_CELL, MAP_CELL)
            pool_width = min(columns, pool.num_drawn) * MAP_CELL
            pool_height = cdiv(pool.num_drawn, columns) * MAP_CELL
        else:
            columns = next(
                n for n, most in ((4, 16), (5, 25), (8, 10**9)) if pool.num_drawn <= most
            )
            columns = min(columns, pool.num_drawn)
            tile = tile_size(pool, SLOT_WIDTH)
            pool_width = columns * (tile[0] + GAP) - GAP
            pool_height = cdiv(pool.num_drawn, columns) * (tile[1] + GAP) - GAP
        lines = 0
        width = 0
        hosts = strip.num_host_blocks
        host_height = HOST if hosts else 0
        if strip.with_tables:
            lines = max(len(frame.tables) for frame in strip.frames)
            longest = max((len(t.blocks) for f in strip.frames for t in f.tables), default=0)
            width = 30 + longest * (CHIP_WIDTH + 3)
        height = CAPTION + pool_height + host_height
        height += 12 + lines * (CHIP_HEIGHT + 5) if lines else 0
        width = max(pool_width, width, 30 + hosts * (CHIP_WIDTH + 3))
        return cls(
            columns,
            tile,
            pool_width=pool_width,
            pool_height=pool_height,
            width=width,
            height=height,
        )

    @property
    def frames_in_a_line(self) -> int:
        return max(1, int((MAX_WIDTH - 2 * MARGIN + FRAME_GAP) // (self.width + FRAME_GAP)))


def _drawing(strip: FilmstripModel) -> Drawing:
    sizes = _Sizes.of(strip)
    columns = min(sizes.frames_in_a_line, len(strip.frames))
    lines = cdiv(len(strip.frames), columns)
    right = MARGIN + columns * (sizes.width + FRAME_GAP) - FRAME_GAP
    bottom = HEADER_HEIGHT + lines * (sizes.height + FRAME_GAP)
    drawing = sheet(
        strip.title, strip.facts, strip.alt, right=right, bottom=bottom, legend=_legend(strip)
    )
    for index, frame in enumerate(strip.frames):
        line, column = divmod(index, columns)
        x = MARGIN + column * (sizes.width + FRAME_GAP)
        y = HEADER_HEIGHT + line * (sizes.height + FRAME_GAP)
        drawing.text(x, y + 14, f"step {frame.step}", font_size=13, font_weight="bold")
        plan = shorten(frame.plan, int(sizes.width / (11 * SANS_EM)))
        drawing.text(x, y + 30, plan, sizes.width, fill=GREY, font_size=11)
        _draw_pool(drawing, strip, frame, sizes=sizes, x=x, y=y + CAPTION)
        y += CAPTION + sizes.pool_height + 12
        if strip.num_host_blocks:
            _draw_host(drawing, frame, x, y + HOST - CHIP_HEIGHT - 12)
            y += HOST
        if strip.with_tables:
            _draw_tables(drawing, frame, x, y)
    return drawing


def _draw_pool(
    drawing: Drawing, strip: FilmstripModel, frame: FilmFrame, sizes: _Sizes, x: float, y: float
) -> None:
    if strip.as_map:
        edges = _edges(frame) if len(frame.changed) <= MAX_MARKED else {}
        draw_map(
            drawing,
            frame.pool,
            x=x,
            y=y,
            columns=sizes.columns,
            cell=MAP_CELL,
            edges=edges,
            key=(frame.step,),
        )
        return
    width, height = sizes.tile
    edges = _edges(frame)
    with drawing.group(fill=GREY, font_size=11):
        for block_id in range(frame.pool.num_drawn):
            line, column = divmod(block_id, sizes.columns)
            left = x + column * (width + GAP)
            top = y + line * (height + GAP)
            box = (left, top, width, height)
            draw_tile(drawing, frame.pool, block_id, box=box, edge=edges.get(block_id), plain=True)
            drawing.place((frame.step, block_id), left, top, width, height)


def _edges(frame: FilmFrame) -> dict[int, Edge]:
    """Edges of the blocks that changed hands."""
    return dict.fromkeys(frame.got, look.CHANGED) | dict.fromkeys(frame.gave, look.GIVEN_BACK)


def _draw_host(drawing: Drawing, frame: FilmFrame, x: float, y: float) -> None:
    """Chips of the host's blocks, and arrows between them and the pool for what is swapped."""
    drawing.text(x, y + 13, "host" if frame.host else "host: nothing", fill=GREY, font_size=11)
    for index, block in enumerate(frame.host):
        left = x + 30 + index * (CHIP_WIDTH + 3)
        owner = block.owners[0]
        middle = left + CHIP_WIDTH / 2
        edge = look.outline(block.goes_out, owner.edge)
        if block.partner is not None and not block.goes_out:
            owner = replace(owner, light=PAPER)
            edge = look.GIVEN_BACK
        letters = " ".join(owner.letter for owner in block.owners)
        _draw_chip(drawing, owner, letters, x=left, y=y, edge=edge, shared=len(block.owners) > 1)
        if block.partner is not None:
            tile = drawing.places[frame.step, block.partner]
            ends = [(tile[0] + tile[2] / 2, tile[1] + tile[3]), (middle, y)]
            (x1, y1), (x2, y2) = ends if block.goes_out else ends[::-1]
            line = f"M{x1:g} {y1:g}L{x2:g} {y2:g}"
            colour = block.owners[0].edge
            drawing.arrow(line, (x2, y2), (x2 - x1, y2 - y1), colour)


def _draw_tables(drawing: Drawing, frame: FilmFrame, x: float, y: float) -> None:
    """A line of chips per sequence: its letter, and the ids of its blocks."""
    for table in frame.tables:
        key = f" {table.label.key}" if table.label else ""
        drawing.text(
            x + 22, y + 13, table.owner.letter + key, fill=table.owner.edge, font_weight="bold",
            text_anchor="end",
        )  # fmt: skip
        for block in table.blocks:
            left = x + 30 + block.logical * (CHIP_WIDTH + 3)
            if block.is_null:
                edge = look.LEFT_BEHIND if block.was is None else look.GIVEN_BACK
                drawing.rect(left, y, CHIP_WIDTH, CHIP_HEIGHT, rx=3, fill=PAPER, **edge)
                continue
            edge = look.outline(block.block_id in frame.got, block.owner.edge)
            _draw_chip(
                drawing,
                block.owner,
                block.block_id,
                x=left,
                y=y,
                edge=edge,
                shared=block.ref_count > 1,
            )
        y += CHIP_HEIGHT + 5


def _draw_chip(
    drawing: Drawing, owner: Owner, label: str | int, x: float, y: float, edge: Edge, shared: bool
) -> None:
    drawing.rect(x, y, CHIP_WIDTH, CHIP_HEIGHT, rx=3, fill=owner.light, **edge)
    if shared:
        drawing.hatch(x + 1, y + 13, CHIP_WIDTH - 2, CHIP_HEIGHT - 14)
    middle = {"font_size": 11, "text_anchor": "middle"}
    drawing.text(x + CHIP_WIDTH / 2, y + 12, label, CHIP_WIDTH - 4, shared, **middle)


def _legend(strip: FilmstripModel) -> list:
    if strip.as_map:
        most = MAX_MARKED
        entries = map_legend(frame.pool for frame in strip.frames)
    else:
        most = MAX_TILES
        blocks = [block for frame in strip.frames for block in frame.pool.blocks]
        cached = any(frame.pool.cached_and_free for frame in strip.frames)
        entries = look.legend_entries(blocks, any_cached=cached, any_new=False)
        entries += groups_legend(strip.frames[0].pool.snapshot)
        tables = [table for frame in strip.frames for table in frame.tables]
        entries += look.legend_of_nulls(block for table in tables for block in table.blocks)
    if any(0 < len(frame.changed) <= most for frame in strip.frames):
        entries.append((look.changed_swatch, "a sequence got it in this step"))
        if any(frame.gave for frame in strip.frames):
            entries.append((look.given_back_swatch, "given back in this step"))
    return entries
