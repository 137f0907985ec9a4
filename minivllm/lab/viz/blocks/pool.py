"""Pool: the block pool at one moment, drawn as tiles or, if it is large, as a map of squares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from minivllm.lab.viz.blocks import tiles as look
from minivllm.lab.viz.blocks.snapshot import MAX_SLOTS, CachedTile, HeldBlock, Snapshot
from minivllm.lab.viz.draw.layout import SWATCH_HEIGHT, SWATCH_WIDTH, Swatch
from minivllm.lab.viz.draw.palette import GREY, LINE, PAPER
from minivllm.lab.viz.draw.svg import Drawing
from minivllm.lab.viz.draw.wording import count, ordinal
from minivllm.trace import Trace
from minivllm.trace.records import BlockCopied, BlocksAllocated, SwappedIn
from minivllm.utils.math_utils import cdiv

MAX_DETAILED = 64  # more blocks than this are drawn without their slots
SLOT_WIDTH = 18

Box = tuple[float, float, float, float]  # x, y, width, height
Edge = dict[str, str | float]


@dataclass(frozen=True)
class Pool:
    """The physical side of a snapshot: one entry per block, and what to say about them all."""

    snapshot: Snapshot
    holders: dict[int, list[HeldBlock]]
    num_drawn: int  # blocks; the rest of a large pool was never used

    @classmethod
    def of(cls, trace: Trace, snapshot: Snapshot, whole: bool = True) -> Pool:
        """``whole``: also what was never used, unless the pool is large."""
        num_drawn = snapshot.num_blocks
        if num_drawn > MAX_DETAILED or not whole:
            used = [b for r in trace.of(BlocksAllocated, SwappedIn) for b in r.block_ids]
            used += [record.dst_block_id for record in trace.of(BlockCopied)]
            line = 20 if num_drawn > MAX_DETAILED else 4
            num_drawn = min(num_drawn, cdiv(max(used, default=0) + 1, line) * line)
        return cls(snapshot, snapshot.holders, num_drawn)

    @property
    def detailed(self) -> bool:
        few = self.num_drawn <= MAX_DETAILED
        return few and self.snapshot.max_block_size <= MAX_SLOTS

    @property
    def cached_and_free(self) -> dict[int, CachedTile]:
        """Blocks that are not held, and that the prefix cache can still find."""
        return self.snapshot.cached

    def block(self, block_id: int) -> HeldBlock | None:
        """Content of a block, as that holder sees it which uses most of it."""
        return max(self.holders.get(block_id, ()), key=lambda b: b.num_used, default=None)

    def label(self, block_id: int, length: int) -> str:
        """Holders of a block, as fully as fits: "A", "A B ×2", "A +2 ×3", "A ×3"."""
        letters = [held.owner.letter for held in self.holders[block_id]]
        if len(letters) == 1:
            return letters[0]
        times = f" ×{len(letters)}"
        labels = [
            " ".join(letters[:named]) + (f" +{rest}" if (rest := len(letters) - named) else "")
            for named in (2, 1)
        ]
        return next((x + times for x in labels if len(x + times) <= length), letters[0] + times)

    @cached_property
    def blocks(self) -> list[HeldBlock]:
        return [self.block(block_id) for block_id in sorted(self.holders)]

    @property
    def title(self) -> str:
        return f"Block pool, {self.snapshot.moment}"

    @property
    def facts(self) -> str:
        """The numbers that matter, in one line."""
        held = len(self.holders)
        usable = self.snapshot.num_blocks - 1
        slots = sum(len(block.slots) for block in self.blocks)
        used = sum(block.num_used for block in self.blocks)
        written = sum(block.num_written for block in self.blocks)
        shared = sum(block.ref_count > 1 for block in self.blocks)
        parts = [f"{held} of {count(usable, 'block')} held"]
        if held:
            parts.append(f"{used} of their {count(slots, 'slot')} used, {slots - used} empty")
        if written:
            parts.append(f"{written} written by this step")
        if in_flight := sum(block.num_in_flight for block in self.blocks):
            parts.append(f"{in_flight} in flight")
        if shared:
            parts.append(f"{shared} shared")
        if self.cached_and_free:
            parts.append(f"{len(self.cached_and_free)} free but cached")
        if skipped := len(self.snapshot.skipped):
            parts.append(f"{skipped} given back by a window")
        return " · ".join(parts)

    def group_key(self, block: HeldBlock) -> str:
        """Key of a block's KV cache group, where there are several."""
        labels = self.snapshot.labels
        return labels[block.group].key if block.group < len(labels) else ""

    @property
    def footnote(self) -> str:
        left_out = self.snapshot.num_blocks - self.num_drawn
        return f"{count(left_out, 'more block')} never used, not drawn." if left_out else ""

    @property
    def alt(self) -> str:
        owners = list(dict.fromkeys(t.owner.letter for t in self.snapshot.tables if t.blocks))
        who = ", ".join(owners) if len(owners) <= 8 else count(len(owners), "sequence")
        held, *rest = self.facts.split(" · ")
        return f"{self.title}: " + "; ".join([f"{held} by {who}" if who else held, *rest]) + "."


def tile_size(pool: Pool, slot_width: float = SLOT_WIDTH) -> tuple[float, float]:
    """Width and height of one block's tile."""
    if not pool.detailed:
        return 38, 44
    size = pool.snapshot.max_block_size
    slots = min(size, look.SLOTS_PER_LINE) * slot_width
    return max(62, slots + 8), 22 + look.slot_lines(size) * look.SLOT_HEIGHT + 6


def draw_tile(
    drawing: Drawing, pool: Pool, block_id: int, box: Box, edge: Edge | None = None,
    decode: look.Decode = None, with_tokens: bool = False, plain: bool = False,
) -> None:  # fmt: skip
    """One block, inside a group that sets small grey type.

    ``edge`` says that it changed hands. ``plain`` leaves out what takes many bytes: tokens and
    tooltips.
    """
    block = pool.block(block_id)
    if block is not None:
        _draw_held(drawing, pool, block_id, box, edge)
    elif block_id in pool.cached_and_free:
        block = pool.cached_and_free[block_id].block
        _draw_cached(drawing, pool, block_id, box, edge)
    else:
        _draw_bare(drawing, block_id, box, edge)
    if block is not None and pool.detailed:
        x = box[0] + 4
        y = box[1] + 24
        width = box[2] - 8
        if plain:
            look.draw_plain_slots(drawing, x, y, width, block)
        else:
            look.draw_slots(
                drawing, x, y, width=width, block=block, decode=decode, labels=with_tokens
            )


def _draw_held(drawing: Drawing, pool: Pool, block_id: int, box: Box, edge: Edge | None) -> None:
    """All but the slots, which come on top."""
    block = pool.block(block_id)
    x, y, width, height = box
    drawing.rect(*box, rx=4, fill=PAPER, **(edge or {"stroke": block.owner.edge}))
    drawing.text(x + 5, y + 15, block_id)
    _draw_group(drawing, pool, block, box)
    bold = {"fill": block.owner.edge, "font_size": 12, "font_weight": "bold"}
    if pool.detailed:
        room = width - 14 - 6.2 * len(str(block_id))
        label = pool.label(block_id, int(room / 7))
        drawing.text(x + width - 5, y + 15, label, text_anchor="end", **bold)
        if block.ref_count > 1:
            drawing.hatch(x + 2, y + 21, width - 4, height - 23)
    else:
        label = pool.label(block_id, 5).replace(" ", "")
        drawing.text(x + width / 2, y + 29, label, text_anchor="middle", **bold)
        look.draw_fill_bar(drawing, x + 4, y + 34, width=width - 8, height=6, block=block)


def _draw_cached(drawing: Drawing, pool: Pool, block_id: int, box: Box, edge: Edge | None) -> None:
    """Draw a cached block: the sequences that had it, and its place in the free queue."""
    tile = pool.cached_and_free[block_id]
    x, y, width, height = box
    drawing.rect(*box, rx=4, fill=PAPER, **look.DOTTED | (edge or {}))
    drawing.text(x + 5, y + 15, block_id)
    if not pool.detailed:  # else its place is there
        _draw_group(drawing, pool, tile.block, box)
    letter = {"fill": tile.block.owner.edge, "font_size": 12}
    if pool.detailed:
        drawing.text(x + width - 5, y + 15, tile.block.owner.letter, text_anchor="end", **letter)
        drawing.text(x + width / 2, y + 15, ordinal(tile.place), text_anchor="middle")
    else:
        middle = x + width / 2
        drawing.text(middle, y + 29, tile.block.owner.letter, text_anchor="middle", **letter)
        drawing.text(middle, y + height - 4, ordinal(tile.place), text_anchor="middle")


def _draw_group(drawing: Drawing, pool: Pool, block: HeldBlock, box: Box) -> None:
    """Key of the block's KV cache group behind its number, where there is room."""
    if not (key := pool.group_key(block)):
        return
    x = box[0] + 5 + 6.2 * len(str(block.block_id)) + 5
    taken = 8 * len(pool.label(block.block_id, 5)) + 7 if pool.detailed and block.ref_count else 3
    if x + 6.2 * len(key) + taken <= box[0] + box[2]:
        drawing.text(x, box[1] + 15, key, font_style="italic")


def group_keys(snapshot: Snapshot) -> dict[str, list[str]]:
    """Keys of the KV cache groups by their kind, where there are several groups."""
    keys: dict[str, list[str]] = {}
    for group, label in zip(snapshot.groups, snapshot.labels, strict=False):
        keys.setdefault(group.kind, []).append(label.key)
    return keys


def groups_legend(snapshot: Snapshot) -> list[tuple[Swatch, str]]:
    """Legend of the keys of KV cache groups, if there are several: those of a kind together."""
    entries = []
    for kind, keys in group_keys(snapshot).items():
        key = keys[0] if len(keys) == 1 else f"{keys[0]}-{keys[-1][1:]}"
        what = "of group" if len(keys) == 1 else f"of {len(keys)} groups"
        entries.append((_key_swatch(key), f"block {what} “{kind}”"))
    return entries


def _key_swatch(key: str) -> Swatch:
    def draw(drawing: Drawing, x: float, y: float) -> None:
        middle = {"font_size": 11, "font_style": "italic", "text_anchor": "middle"}
        drawing.text(x + SWATCH_WIDTH / 2, y + 11, key, fill=GREY, **middle)

    return draw


def _draw_bare(drawing: Drawing, block_id: int, box: Box, edge: Edge | None) -> None:
    """A free block, or the null block, which no sequence ever holds."""
    x, y, width, _ = box
    fill = "#eeeeee" if block_id == 0 else PAPER
    drawing.rect(*box, rx=4, fill=fill, **(edge or {"stroke": LINE}))
    drawing.text(x + 5, y + 15, block_id)
    if block_id == 0:
        drawing.text(x + width - 5, y + 15, "null", text_anchor="end")


HELD = "#c3e2f5"
SHARED = "#56b4e9"
KINDS = {
    "free": "free",
    "cached": "free, but still cached",
    "held": "held by one sequence",
    "shared": "shared by several",
}


def kind_of(pool: Pool, block_id: int) -> str:
    """Kind of a block, which its square shows."""
    holders = len(pool.holders.get(block_id, ()))
    if holders:
        return "shared" if holders > 1 else "held"
    return "cached" if block_id in pool.snapshot.cached else "free"


def draw_map(
    drawing: Drawing, pool: Pool, x: float, y: float, columns: int, cell: int,
    edges: Mapping[int, Edge], key: tuple = (),
) -> None:  # fmt: skip
    """Squares in lines of ``columns``. Equal neighbours are one path, so the file stays small."""
    corners = {}
    for block_id in range(pool.num_drawn):
        line, column = divmod(block_id, columns)
        corners[block_id] = (x + column * cell, y + line * cell)
        drawing.place((*key, block_id), *corners[block_id], cell, cell)
    boxes: dict[str, str] = dict.fromkeys(KINDS, "")
    dots = ""
    for first in range(0, pool.num_drawn, columns):
        line = range(first, min(first + columns, pool.num_drawn))
        top = y + first // columns * cell
        for kind, run in groupby(line, lambda block_id: kind_of(pool, block_id)):
            ids = list(run)
            left = x + (ids[0] - first) * cell
            width = len(ids) * cell
            box = f"M{left:g} {top:g}h{width:g}v{cell}h-{width:g}z"
            boxes[kind] += box
            if kind == "cached":
                dots += f"M{left + cell / 2:g} {top + cell / 2:g}h{width - cell + 0.1:g}"
    for kind, d in boxes.items():
        if d:
            _draw_kind(drawing, kind, d, dots, cell)
    _draw_lattice(drawing, pool.num_drawn, x=x, y=y, columns=columns, cell=cell)
    for block_id, edge in edges.items():
        thin = {**edge, "fill": "none", "stroke_width": 1.8}
        drawing.rect(*corners[block_id], cell, cell, **thin)


def map_legend(pools: Iterable[Pool]) -> list[tuple[Swatch, str]]:
    """Legend of the squares of these maps."""
    kinds = {kind_of(pool, block_id) for pool in pools for block_id in range(1, pool.num_drawn)}
    return [(_swatch(kind), text) for kind, text in KINDS.items() if kind in kinds]


def _swatch(kind: str) -> Swatch:
    def draw(drawing: Drawing, x: float, y: float) -> None:
        size = SWATCH_HEIGHT
        d = f"M{x + 3:g} {y:g}h{size}v{size}h-{size}z"
        dots = f"M{x + 3 + size / 2:g} {y + size / 2:g}h0.1"
        _draw_kind(drawing, kind, d, dots, size)
        drawing.path(d, fill="none", stroke=LINE)

    return draw


def _draw_kind(drawing: Drawing, kind: str, d: str, dots: str, cell: int) -> None:
    drawing.path(d, fill={"held": HELD, "shared": SHARED}.get(kind, PAPER))
    if kind == "shared":
        drawing.hatch_path(d)
    elif kind == "cached":
        drawing.path(dots, **_dots(cell))


def _dots(cell: int) -> dict[str, str | float]:
    """A line of dots, one in the middle of each square."""
    return {
        "fill": "none", "stroke": GREY, "stroke_width": 2.4, "stroke_linecap": "round",
        "stroke_dasharray": f"0 {cell}",
    }  # fmt: skip


def _draw_lattice(
    drawing: Drawing, num_blocks: int, x: float, y: float, columns: int, cell: int
) -> None:
    whole, rest = divmod(num_blocks, columns)
    d = ""
    for num_columns, top, num_lines in ((columns, y, whole), (rest, y + whole * cell, 1)):
        if num_columns and num_lines:
            right, bottom = num_columns * cell, num_lines * cell
            d += "".join(f"M{x + i * cell:g} {top:g}v{bottom:g}" for i in range(num_columns + 1))
            d += "".join(f"M{x:g} {top + j * cell:g}h{right:g}" for j in range(num_lines + 1))
    drawing.path(d, stroke=LINE, stroke_width=0.6)
