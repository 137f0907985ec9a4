"""Tiles: one KV block and its slots, as the block grid and the block table draw them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from minivllm.lab.translation import translated
from minivllm.lab.viz.blocks.snapshot import HeldBlock, Slot
from minivllm.lab.viz.draw.layout import NOBODY, Swatch, box_swatch
from minivllm.lab.viz.draw.palette import GREY, INK, LINE, PAPER, Owner
from minivllm.lab.viz.draw.svg import MONO, MONO_EM, Drawing
from minivllm.lab.viz.draw.wording import token_label
from minivllm.utils.math_utils import cdiv

SLOTS_PER_LINE = 8
SLOT_HEIGHT = 18
TOKEN_LENGTH = 6  # characters of a token's text that fit into its slot
TEXT_SLOT_WIDTH = TOKEN_LENGTH * 11 * MONO_EM + 6  # of a slot that holds them
TEXT_MARK = {"filled": "■", "in flight": "~", "written": "+", "empty": "□"}
PLACEHOLDER_MARK = "◌"

LEFT_BEHIND = {"stroke": GREY, "stroke_dasharray": "1 3", "stroke_linecap": "round"}  # null
DOTTED = {"stroke": GREY, "stroke_dasharray": "2 3"}  # edge of a free block that is cached
CHANGED = {"stroke": INK, "stroke_width": 2.5}  # edge of what this step changed
GIVEN_BACK = {"stroke": INK, "stroke_width": 2, "stroke_dasharray": "5 3"}

changed_swatch = box_swatch(**CHANGED)
left_behind_swatch = box_swatch(**LEFT_BEHIND)
given_back_swatch = box_swatch(**GIVEN_BACK)
hatched_swatch = box_swatch(hatched=True, stroke=NOBODY.edge)

Decode = Callable[[int], str] | None


def slot_lines(block_size: int) -> int:
    """Long blocks are drawn as several lines of slots."""
    return cdiv(block_size, SLOTS_PER_LINE)


def draw_slots(
    drawing: Drawing, x: float, y: float, width: float, block: HeldBlock, decode: Decode,
    labels: bool,
) -> None:  # fmt: skip
    """The slots of a block in a box of this width; with ``labels``, their tokens inside."""
    slot_width = width / min(len(block.slots), SLOTS_PER_LINE)
    lefts = [x + i % SLOTS_PER_LINE * slot_width for i in range(len(block.slots))]
    tops = [y + i // SLOTS_PER_LINE * SLOT_HEIGHT for i in range(len(block.slots))]
    with drawing.group(stroke=block.owner.edge):
        for slot, left, top in zip(block.slots, lefts, tops, strict=True):
            drawing.rect(
                left + 1, top + 1, slot_width - 2, SLOT_HEIGHT - 2, rx=2,
                title=None if labels and decode is None else _tooltip(slot, decode),
                **_look(slot.state, block.owner, slot.is_placeholder),
            )  # fmt: skip
    if not labels:
        return
    with drawing.group(font_size=11, font_family=MONO, text_anchor="middle"):
        for slot, left, top in zip(block.slots, lefts, tops, strict=True):
            if slot.token is not None:
                label = token_label(slot.token, decode, TOKEN_LENGTH)
                ink = block.owner.ink if slot.state == "written" else INK
                drawing.text(left + slot_width / 2, top + 13, label, fill=ink)


def draw_fill_bar(
    drawing: Drawing, x: float, y: float, width: float, height: float, block: HeldBlock
) -> None:
    """The same as ``draw_slots`` where there is no room for single slots."""
    slot_width = width / len(block.slots)
    filled = (block.num_used - block.num_written) * slot_width
    written = block.num_written * slot_width
    rest = PAPER if block.num_used < len(block.slots) or block.num_written else block.owner.light
    drawing.rect(x, y, width, height, fill=rest, stroke=block.owner.edge, stroke_width=0.7)
    if filled and rest == PAPER:
        drawing.rect(x, y, filled, height, fill=block.owner.light)
    if written:
        drawing.rect(x + filled, y, written, height, fill=block.owner.solid)
    if block.ref_count > 1:
        drawing.hatch(x, y, width, height)


def draw_plain_slots(drawing: Drawing, x: float, y: float, width: float, block: HeldBlock) -> None:
    """The same as ``draw_slots`` in few bytes: no tooltips, and one path per look."""
    slot_width = width / min(len(block.slots), SLOTS_PER_LINE)
    boxes: dict[tuple[str, bool], str] = {}
    for i, slot in enumerate(block.slots):
        left = x + i % SLOTS_PER_LINE * slot_width + 1
        top = y + i // SLOTS_PER_LINE * SLOT_HEIGHT + 1
        inner = f"h{slot_width - 2:g}v{SLOT_HEIGHT - 2}h-{slot_width - 2:g}z"
        key = slot.state, slot.is_placeholder
        boxes[key] = boxes.get(key, "") + f"M{left:g} {top:g}{inner}"
    for state in ("empty", "filled", "in flight", "written", "cached"):
        for is_placeholder in (False, True):
            if d := boxes.get((state, is_placeholder)):
                look = _look(state, block.owner, is_placeholder)
                drawing.path(d, **{"stroke": block.owner.edge, **look})


def outline(changed: bool, edge: str) -> dict[str, str | float]:
    """Stroke of an edge: thick and black if something changed in this step."""
    return CHANGED if changed else {"stroke": edge, "stroke_width": 1}


def legend_entries(
    blocks: list[HeldBlock], any_cached: bool = False, any_new: bool = True
) -> list[tuple[Swatch, str]]:
    """Legend of the marks of these blocks, and of free ones that are cached."""
    slots = [slot for block in blocks for slot in block.slots]
    states = {slot.state for slot in slots}
    meanings = {
        "filled": "slot filled before this step" if "written" in states else "slot filled",
        "in flight": "slot written by an earlier step, in flight",
        "written": "slot written by this step",
        "empty": "slot still empty",
    }
    entries = [(_slot_swatch(state), text) for state, text in meanings.items() if state in states]
    if any(slot.is_placeholder for slot in slots):
        dotted = {"stroke": NOBODY.edge, **_look("written", NOBODY, is_placeholder=True)}
        entries.append((box_swatch(**dotted), "slot of a token that is not known yet"))
    if any_new and any(block.is_new for block in blocks):
        entries.append((changed_swatch, "block allocated in this step"))
    if any(block.ref_count > 1 for block in blocks):
        entries.append((hatched_swatch, "block shared by ×N sequences"))
    if any_cached:
        what = "free, but still cached (3rd: two others are reused before it)"
        entries.append((box_swatch(**DOTTED), what))
    return entries


def legend_of_nulls(entries: Iterable[HeldBlock]) -> list[tuple[Swatch, str]]:
    """Legend of entries that windows have left behind, in this step and before."""
    left_now = {block.was is not None for block in entries if block.is_null}
    told = []
    if False in left_now:
        told.append((left_behind_swatch, "left behind by the window: null"))
    if True in left_now:
        told.append((given_back_swatch, "left behind in this step: its block went back"))
    return told


def _look(state: str, owner: Owner, is_placeholder: bool = False) -> dict[str, str]:
    """Fill of a slot; the empty ones step back, and an edge of dots is of a token on its way."""
    if is_placeholder:
        return {"fill": PAPER, "stroke_dasharray": "1.5 2"}
    return {
        "filled": {"fill": owner.light},
        "in flight": {"fill": owner.light, "stroke_dasharray": "4 2"},
        "written": {"fill": owner.solid},
        "empty": {"fill": PAPER, "stroke": LINE},
        "cached": {"fill": owner.light, "opacity": 0.5},
    }[state]


def _tooltip(slot: Slot, decode: Decode) -> str:
    where = f"position {slot.position} → slot {slot.slot}: "
    if slot.token is None:
        what = "a draft" if slot.is_draft else "a token on its way"
        state = translated(slot.state)
        return where + (state if slot.state == "empty" else f"{what}, {state}")
    text = "" if decode is None else f" {decode(slot.token)!r}"
    return f"{where}token {slot.token}{text}, {translated(slot.state)}"


def _slot_swatch(state: str) -> Swatch:
    return box_swatch(**{"stroke": NOBODY.edge, **_look(state, NOBODY)})
