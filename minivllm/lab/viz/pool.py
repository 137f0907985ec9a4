"""The pool at one moment: who holds which block, and how one block is drawn as a tile."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from minivllm.kv.block_table import cdiv
from minivllm.lab.viz import blocks as look
from minivllm.lab.viz.palette import LINE, PAPER
from minivllm.lab.viz.snapshot import HeldBlock, Snapshot
from minivllm.lab.viz.svg import Drawing
from minivllm.lab.viz.wording import count
from minivllm.records import BlockCopied, BlocksAllocated, SwappedIn
from minivllm.trace import Trace

MAX_DETAILED = 64  # more blocks than this are drawn without their slots
SLOT_WIDTH = 18

Box = tuple[float, float, float, float]  # x, y, width, height


@dataclass(frozen=True)
class Pool:
    """The physical side of a snapshot: one entry per block, and what to say about them all."""

    snapshot: Snapshot
    holders: dict[int, list[HeldBlock]]
    num_drawn: int  # blocks; the rest of a large pool was never used

    @classmethod
    def of(cls, trace: Trace, snapshot: Snapshot) -> Pool:
        num_drawn = snapshot.num_blocks
        if num_drawn > MAX_DETAILED:
            used = [b for r in trace.of(BlocksAllocated, SwappedIn) for b in r.block_ids]
            used += [record.dst_block_id for record in trace.of(BlockCopied)]
            num_drawn = min(num_drawn, cdiv(max(used, default=0) + 1, 20) * 20)
        return cls(snapshot, snapshot.holders, num_drawn)

    @property
    def detailed(self) -> bool:
        few = self.num_drawn <= MAX_DETAILED
        return few and self.snapshot.block_size <= look.MAX_SLOTS

    @property
    def cached_and_free(self) -> set[int]:
        """Blocks that nobody holds and the prefix cache can still find."""
        return set(self.snapshot.cached - self.holders.keys())

    def block(self, block_id: int) -> HeldBlock | None:
        """What is in a block, as the one of its holders sees it that uses most of it."""
        return max(self.holders.get(block_id, ()), key=lambda b: b.num_used, default=None)

    def label(self, block_id: int, length: int) -> str:
        """Who holds it, as fully as fits: "A", "A B ×2", "A +2 ×3", "A ×3"."""
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


def tile_size(pool: Pool, slot_width: float = SLOT_WIDTH) -> tuple[float, float]:
    """Width and height of one block's tile."""
    if not pool.detailed:
        return 38, 44
    size = pool.snapshot.block_size
    slots = min(size, look.SLOTS_PER_LINE) * slot_width
    return max(62, slots + 8), 22 + look.slot_lines(size) * look.SLOT_HEIGHT + 6


def draw_tile(
    drawing: Drawing, pool: Pool, block_id: int, box: Box, changed: bool,
    decode: look.Decode = None, with_tokens: bool = False, plain: bool = False,
) -> None:  # fmt: skip
    """One block, inside a group that sets small grey type. What changed has a thick edge.

    ``plain`` leaves out what takes many bytes: tokens and tooltips.
    """
    if block_id in pool.holders:
        _draw_held(drawing, pool, block_id, box, changed)
        slots = (box[0] + 4, box[1] + 24, box[2] - 8, pool.block(block_id))
        if plain and pool.detailed:
            look.draw_plain_slots(drawing, *slots)
        elif pool.detailed:
            look.draw_slots(drawing, *slots, decode, with_tokens)
    else:
        _draw_bare(drawing, block_id, box, block_id in pool.snapshot.cached, changed)


def _draw_held(drawing: Drawing, pool: Pool, block_id: int, box: Box, changed: bool) -> None:
    """All but the slots, which come on top."""
    block = pool.block(block_id)
    x, y, width, height = box
    drawing.rect(*box, rx=4, fill=PAPER, **look.outline(changed, block.owner.edge))
    drawing.text(x + 5, y + 15, block_id)
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
        look.draw_fill_bar(drawing, x + 4, y + 34, width - 8, 6, block)


def _draw_bare(drawing: Drawing, block_id: int, box: Box, cached: bool, changed: bool) -> None:
    """A free block, or the null block, which nobody ever holds."""
    x, y, width, _ = box
    edge = look.DOTTED if cached else {"stroke": LINE}
    if changed:
        edge = {**edge, **look.CHANGED}
    drawing.rect(*box, rx=4, fill="#eeeeee" if block_id == 0 else PAPER, **edge)
    drawing.text(x + 5, y + 15, block_id)
    if block_id == 0:
        drawing.text(x + width - 5, y + 15, "null", text_anchor="end")
