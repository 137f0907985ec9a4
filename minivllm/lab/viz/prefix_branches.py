"""A prefix tree folded to what fits on a page: chains as one box, small branches as a count."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from minivllm.lab.viz.prefix_chain import Node, PrefixTree

MAX_BOXES = 30
ENOUGH_BOXES = 12  # of which more are only drawn if several sequences have had them
MAX_DEPTH = 6


@dataclass
class Branch:
    """One box: a block, or several in a row that the same sequences have had."""

    nodes: list[Node]
    children: list[Branch] = field(default_factory=list)
    depth: int = 0  # boxes before it
    num_hidden_branches: int = 0  # of its children
    num_hidden_blocks: int = 0  # in them and below

    def walk(self) -> Iterator[Branch]:
        """Itself and all below it, each before its children."""
        yield self
        for child in self.children:
            yield from child.walk()


def fold(tree: PrefixTree) -> Branch:
    """The root of the boxes to draw; its own ``nodes`` are the root of the tree.

    A small tree is drawn block by block. In a large one, blocks in a row become one box, and only
    the branches that most sequences have had are drawn; the rest is counted where it hangs.
    """
    deepest = max((node.depth for node in tree.nodes.values()), default=0)
    small = len(tree.nodes) <= MAX_BOXES and deepest < MAX_DEPTH
    root = _grow(tree.root, 0, merge=not small)
    # Nobody has a block without those before it: a parent is never less important than its child.
    boxes = sorted(root.walk(), key=lambda b: (b.depth > 0, -len(b.nodes[0].seq_ids), b.depth))
    chosen = {
        id(box)
        for place, box in enumerate(boxes[: MAX_BOXES + 1])
        if box.depth <= MAX_DEPTH
        and (small or place <= ENOUGH_BOXES or len(box.nodes[0].seq_ids) > 1)
    }
    for box in list(root.walk()):
        hidden = [child for child in box.children if id(child) not in chosen]
        box.children = [child for child in box.children if id(child) in chosen]
        box.num_hidden_branches = len(hidden)
        box.num_hidden_blocks = sum(len(b.nodes) for child in hidden for b in child.walk())
    return root


def _grow(node: Node, depth: int, merge: bool) -> Branch:
    nodes = [node]
    while merge and node.parent is not None and len(node.children) == 1:
        (child,) = node.children
        if child.seq_ids != node.seq_ids or child.state != node.state:
            break
        nodes.append(node := child)
    return Branch(nodes, [_grow(child, depth + 1, merge) for child in node.children], depth)
