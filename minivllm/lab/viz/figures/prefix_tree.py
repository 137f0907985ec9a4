"""The prefix tree: which sequences share which blocks, and what of it can still be found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minivllm.lab.viz.blocks import tiles as look
from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, Swatch, box_swatch, sheet
from minivllm.lab.viz.draw.palette import GREY, INK, LINE, PAPER, Owner, owners_of
from minivllm.lab.viz.draw.svg import MONO, MONO_EM, SANS_EM, Drawing, text_width
from minivllm.lab.viz.draw.wording import count, shorten, token_label
from minivllm.lab.viz.model.prefix_model import Branch, Node, PrefixTree, fold, read_prefix_tree
from minivllm.trace import Trace
from minivllm.utils.validation import check

BOX_WIDTH = 128
BOX_HEIGHT = 60
GAP_X = 20
GAP_Y = 12
NOTE_HEIGHT = 38  # of a count of hidden branches
ROOT_WIDTH = 34
EVICTED = {"stroke": LINE, "stroke_dasharray": "6 4"}


def prefix_tree(
    trace: Trace,
    step: int | None = None,
    after: str = "schedule",
    decode: Callable[[int], str] | None = None,
    title: str | None = None,
    mark: Sequence[Mark] = (),
) -> Figure:
    """Draw the hash chain of the prefix cache as a tree, beginnings at the left.

    A box is a full block: where it is, its tokens, the beginning of its hash, and who computed and
    who hit it. A solid edge means that a sequence holds it (hatching and ×N: several do), a dotted
    one that it is free but can be found, a dashed one that it was evicted. A thick edge is a block
    registered or hit in this step. In a large tree, blocks in a row become one box,
    and branches that few sequences have had are only counted.

    Args:
        trace: what the engine wrote, with ``enable_prefix_caching=True``.
        step: counted from 0; None is the last one, -1 the moment before the first.
        after: "schedule" (what the forward pass sees) or "update" (the end of the step).
        decode: turns a token id into text, to be shown in place of the id.
        title, mark: what it shows, and blocks to point at: (block id, text).

    Raises:
        ValueError: for a trace without steps, or a step or moment that it does not have.
    """
    check(trace.num_steps > 0, "trace", trace, "of an engine that has run at least one step")
    step = trace.num_steps - 1 if step is None else step
    tree = read_prefix_tree(trace, step, after)
    moment = "before the first step" if step == -1 else f"step {step}, after {after}"
    picture = _Picture(moment, tree, fold(tree), owners_of(trace), decode)
    return finish(_drawing(picture), _text(picture), title, mark)


@dataclass(frozen=True)
class _Picture:
    """A folded tree, its title, facts and alt text."""

    moment: str
    tree: PrefixTree
    root: Branch
    owners: dict[str, Owner]
    decode: look.Decode

    @property
    def title(self) -> str:
        return f"Prefix cache, {self.moment}"

    @property
    def facts(self) -> str:
        nodes = self.tree.nodes.values()
        tree = self.tree
        hits = sum(len(node.hit_by) for node in nodes)
        parts = [
            f"{count(len(nodes), 'full block')} seen",
            f"{tree.count('held')} held",
            f"{tree.count('free')} free but cached",
            f"{tree.count('evicted')} evicted",
            f"{count(hits, 'hit')}",
        ]
        return " · ".join(parts)

    @property
    def alt(self) -> str:
        best = max(self.tree.nodes.values(), key=lambda node: len(node.seq_ids), default=None)
        said = f"{self.title}: {self.facts.replace(' · ', ', ')}"
        if best is not None and len(best.seq_ids) > 1:
            said += f"; {count(len(best.seq_ids), 'sequence')} share the most shared one"
        return said + "."

    def where(self, box: Branch) -> str:
        """ "block 3 ×2", "4 blocks, evicted"."""
        node = box.nodes[0]
        number = len(box.nodes)
        times = f" ×{node.ref_count}" if node.ref_count > 1 else ""
        if number > 1:
            return f"{number} blocks{times}" if node.block_ids else f"{number} evicted"
        if not node.block_ids:
            return "evicted"
        ids = ", ".join(map(str, node.block_ids[:3])) + ("…" if len(node.block_ids) > 3 else "")
        return f"block{'s' if len(node.block_ids) > 1 else ''} {ids}{times}"

    def tokens(self, box: Branch, length: int) -> str:
        """The beginning of what it holds."""
        ids = [token for node in box.nodes for token in node.token_ids]
        if self.decode is None:
            return shorten(" ".join(map(str, ids[:length])), length)
        return shorten("".join(token_label(t, self.decode, length) for t in ids[:length]), length)

    def who(self, box: Branch, length: int) -> str:
        """ "A", "A, hit by B C", "A, hit by 47"."""
        node = box.nodes[0]
        first = self._letters(node.computed_by) or "before the trace"
        if not node.hit_by:
            return shorten(first, length)
        full = f"{first}, hit by {self._letters(node.hit_by)}"
        if len(full) <= length:
            return full
        return shorten(f"{first.split()[0]}, {count(len(node.hit_by), 'hit')}", length)

    def _letters(self, seq_ids: list[str]) -> str:
        return " ".join(self.owners[seq_id].letter for seq_id in dict.fromkeys(seq_ids))


def _hidden(box: Branch) -> str:
    branches = "branch" if box.num_hidden_branches == 1 else "branches"
    blocks = count(box.num_hidden_blocks, "block")
    return f"and {box.num_hidden_branches} more {branches}: {blocks}"


def _changed(node: Node) -> bool:
    return node.is_new or node.is_hit


# -- drawn ---------------------------------------------------------------------------------------


def _drawing(picture: _Picture) -> Drawing:
    root = picture.root
    deepest = max(box.depth + bool(box.num_hidden_blocks) for box in root.walk())
    drawing = sheet(
        picture.title,
        picture.facts,
        picture.alt,
        right=_x(deepest) + BOX_WIDTH,
        bottom=HEADER_HEIGHT + _height(root),
        legend=_legend(picture),
    )
    y = HEADER_HEIGHT
    drawing.rect(MARGIN, y, ROOT_WIDTH, BOX_HEIGHT, rx=4, fill="#eeeeee", stroke=LINE)
    with drawing.group(font_size=11, fill=GREY, text_anchor="middle"):
        drawing.text(MARGIN + ROOT_WIDTH / 2, y + BOX_HEIGHT / 2 + 4, "root")
    _draw_children(drawing, picture, root, MARGIN + ROOT_WIDTH, y)
    return drawing


def _x(depth: int) -> float:
    return MARGIN + ROOT_WIDTH + GAP_X + (depth - 1) * (BOX_WIDTH + GAP_X)


def _height(box: Branch) -> float:
    """Height of a node and of all that is right of it."""
    below = sum(map(_height, box.children)) + (NOTE_HEIGHT if box.num_hidden_blocks else 0)
    return max(BOX_HEIGHT + GAP_Y if box.depth or not below else 0, below)


def _draw_children(
    drawing: Drawing, picture: _Picture, box: Branch, right: float, y: float
) -> None:
    """A box's children to its right, the first beside it, and lines that lead to them."""
    start = y + BOX_HEIGHT / 2
    middle = right + GAP_X / 2
    line = {"fill": "none", "stroke": GREY, "stroke_width": 1.3}
    for child in box.children:
        end = y + BOX_HEIGHT / 2
        drawing.path(f"M{right:g} {start:g}H{middle:g}V{end:g}H{right + GAP_X:g}", **line)
        _draw_box(drawing, picture, child, right + GAP_X, y)
        _draw_children(drawing, picture, child, right + GAP_X + BOX_WIDTH, y)
        y += _height(child)
    if box.num_hidden_blocks:
        end = y + 14
        drawing.path(
            f"M{right:g} {start:g}H{middle:g}V{end:g}H{right + GAP_X:g}",
            **line, stroke_dasharray="2 3",
        )  # fmt: skip
        words = _hidden(box).split(": ")
        with drawing.group(font_size=11, fill=GREY):
            drawing.text(right + GAP_X + 4, end + 4, words[0] + ":")
            drawing.text(right + GAP_X + 4, end + 18, words[1])


def _draw_box(drawing: Drawing, picture: _Picture, box: Branch, x: float, y: float) -> None:
    node = box.nodes[0]
    owner = picture.owners[node.seq_ids[0]]
    edge = {
        "held": {"stroke": owner.edge}, "free": look.DOTTED, "evicted": EVICTED,
    }[node.state]  # fmt: skip
    if any(map(_changed, box.nodes)):
        edge = {**edge, **look.CHANGED}
    fill = owner.light if node.state == "held" else PAPER
    width, height = float(BOX_WIDTH), float(BOX_HEIGHT)
    if len(box.nodes) > 1:  # a pile
        width, height = width - 6, height - 6
        for offset in (6, 3):
            drawing.rect(x + offset, y + offset, width, height, rx=4, fill=PAPER, **edge)
    drawing.rect(x, y, width, height, rx=4, fill=fill, **edge)
    for block_id in (block_id for one in box.nodes for block_id in one.block_ids):
        drawing.place((block_id,), x, y, width, height)
    left = x + 7
    if node.ref_count > 1:
        drawing.hatch(x + 2, y + 2, 8, height - 4)
        left += 7
    room = x + width - 5 - left
    ink = GREY if node.state == "evicted" else INK
    digest = box.nodes[0].name.hex()[:4] if len(node.name) == 32 else ""  # not before the trace
    name_room = room - text_width(digest, 11, mono=True) - 3
    drawing.text(left, y + 15, picture.where(box), name_room, font_weight="bold", fill=ink)
    with drawing.group(font_size=11, fill=GREY):
        drawing.text(left, y + height - 7, picture.who(box, int(room / (11 * SANS_EM))), room)
        with drawing.group(font_family=MONO):
            drawing.text(x + width - 6, y + 15, digest, text_anchor="end")
            tokens = picture.tokens(box, int(room / (11 * MONO_EM)))
            drawing.text(left, y + 34, tokens, fill=ink)


def _legend(picture: _Picture) -> list[tuple[Swatch, str]]:
    nodes = [node for box in picture.root.walk() if box.depth for node in box.nodes]
    states = {node.state for node in nodes}
    meanings = {
        "held": ({"stroke": GREY, "fill": "#dadada"}, "held by a sequence"),
        "free": (look.DOTTED, "free, but still cached"),
        "evicted": (EVICTED, "evicted: its block holds something else"),
    }
    entries = [(box_swatch(**look_), text) for s, (look_, text) in meanings.items() if s in states]
    if any(node.ref_count > 1 for node in nodes):
        entries.append((look.hatched_swatch, "held by ×N sequences"))
    if any(map(_changed, nodes)):
        entries.append((look.changed_swatch, "registered or hit in this step"))
    return entries


# -- in characters -------------------------------------------------------------------------------


def _text(picture: _Picture) -> str:
    lines = [picture.title, picture.facts, "", "root"]

    def write(box: Branch, indent: str) -> None:
        last = len(box.children) - (not box.num_hidden_blocks)
        for index, child in enumerate(box.children):
            mark = "!" if any(map(_changed, child.nodes)) else ""
            free = {"free": " ∘", "held": "", "evicted": ""}[child.nodes[0].state]
            said = f"{picture.where(child)}{free}{mark}: {picture.tokens(child, 24)} "
            said += f"({picture.who(child, 36)})"
            lines.append(f"{indent}{'└─' if index == last else '├─'} {said}")
            write(child, indent + ("   " if index == last else "│  "))
        if box.num_hidden_blocks:
            lines.append(f"{indent}└─ {_hidden(box)}")

    write(picture.root, "")
    return "\n".join([*lines, "", "∘ free, but cached  ! registered or hit in this step"])
