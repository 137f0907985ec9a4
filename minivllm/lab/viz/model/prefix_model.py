"""PrefixTree: every full block that the prefix cache registered, below the block before it.

``fold`` reduces a tree to what fits on a page: chains as one box, small branches as a count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from minivllm.trace import Trace
from minivllm.trace.records import (
    BlockCopied,
    BlockForgotten,
    BlocksAllocated,
    BlocksCached,
    BlocksShared,
    Forked,
    StepFailed,
    SwappedIn,
)
from minivllm.trace.state import State

ROOT = b""


@dataclass
class Node:
    """A full block's content: its tokens and all before them, which is what its hash says."""

    name: bytes
    parent: Node | None
    token_ids: tuple[int, ...] = ()
    block_ids: list[int] = field(default_factory=list)  # where it can be found now; often one
    computed_by: list[str] = field(default_factory=list)  # sequences, in order
    hit_by: list[str] = field(default_factory=list)
    ref_count: int = 0  # sequences that hold one of its blocks now
    is_new: bool = False  # registered in this step
    is_hit: bool = False  # and hit in this step
    children: list[Node] = field(default_factory=list)

    @property
    def state(self) -> str:
        """ "held", "free" (but cached) or "evicted"."""
        if self.block_ids:
            return "held" if self.ref_count else "free"
        return "evicted"

    @property
    def seq_ids(self) -> list[str]:
        """Sequences that have had this prefix, each once."""
        return list(dict.fromkeys(self.computed_by + self.hit_by))

    @property
    def depth(self) -> int:
        """Number of blocks before it."""
        return -1 if self.parent is None else self.parent.depth + 1


@dataclass
class PrefixTree:
    """All blocks ever registered in the prefix cache, up to a moment; ``nodes`` in that order.

    Of several KV cache groups it has the first that keeps all tokens: others register only some.
    """

    root: Node
    nodes: dict[bytes, Node]

    def count(self, state: str) -> int:
        return sum(node.state == state for node in self.nodes.values())


def read_prefix_tree(trace: Trace, step: int, after: str) -> PrefixTree:
    """Replay what was registered, hit and evicted.

    Raises:
        ValueError: for a step or moment that the trace does not have.
    """
    tree = PrefixTree(Node(ROOT, None), {})
    state = trace.beginning()
    reader = _Reader(tree, state)
    for record in trace.until(step, after):
        state.apply(record)
        reader.read(record, record.step == step)
    for block_id, count in state.ref_counts.items():
        if block_id in reader.home:
            reader.home[block_id].ref_count += count
    return tree


class _Reader:
    """Builds the tree from the records of a trace."""

    def __init__(self, tree: PrefixTree, state: State):
        self.tree = tree
        self.state = state
        windows = [group.sliding_window for group in state.groups] or [None]
        self.group = windows.index(None) if None in windows else 0
        self.home: dict[int, Node] = {}  # by block id, what can be found in it
        self.chains: dict[str, list[Node]] = {}  # by sequence, its full blocks

    def read(self, record, is_now: bool) -> None:
        """``record`` has been applied to the state already."""
        match record:
            case BlocksShared(_, seq_id, block_ids, self.group):
                self._hit(seq_id, block_ids, is_now)
            case BlocksAllocated(_, _, block_ids) | SwappedIn(_, _, block_ids):
                self._forget(*block_ids)
            case BlockCopied(_, _, _, dst):
                self._forget(dst)
            case BlockForgotten(_, block_id):
                self._forget(block_id)
            case StepFailed():
                self._forget(*list(self.home))
            case Forked(_, seq_id, child_id):
                self.chains[child_id] = list(self.chains.get(seq_id, ()))
            case BlocksCached(_, seq_id, block_ids, names, self.group):
                self._register(seq_id, block_ids, names, is_now)

    def _hit(self, seq_id: str, block_ids: tuple[int, ...], is_now: bool) -> None:
        chain = self.chains[seq_id] = []
        for index, block_id in enumerate(block_ids):
            if block_id == 0:  # null: behind the window of a model without full attention
                continue
            if block_id not in self.home:  # registered before the trace was cleared
                node = self._node(b"block %d" % block_id, seq_id, index)
                node.block_ids.append(block_id)
                self.home[block_id] = node
            node = self.home[block_id]
            node.hit_by.append(seq_id)
            node.is_hit |= is_now
            chain.append(node)

    def _node(self, name: bytes, seq_id: str, index: int) -> Node:
        """The node of that name, a new one at the end of the sequence's chain if there is none."""
        if name not in self.tree.nodes:
            chain = self.chains[seq_id]
            size = self.state.block_size_of(self.group)
            tokens = self.state.sequences[seq_id].token_ids[index * size : (index + 1) * size]
            parent = chain[-1] if chain else self.tree.root
            node = self.tree.nodes[name] = Node(name, parent, tuple(tokens))
            parent.children.append(node)
        return self.tree.nodes[name]

    def _register(
        self, seq_id: str, block_ids: tuple[int, ...], names: tuple[bytes, ...], is_now: bool
    ) -> None:
        table = self.state.sequences[seq_id].table(self.group)
        index = table.index(block_ids[0])
        chain = self.chains.setdefault(seq_id, [])
        del chain[index:]
        for block_id, name in zip(block_ids, names, strict=True):
            index = table.index(block_id, index)
            node = self._node(name, seq_id, index)
            node.computed_by.append(seq_id)
            node.block_ids.append(block_id)
            node.is_new |= is_now
            self.home[block_id] = node
            chain.append(node)

    def _forget(self, *block_ids: int) -> None:
        for block_id in block_ids:
            node = self.home.pop(block_id, None)
            if node is not None:
                node.block_ids.remove(block_id)


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
        """Pre-order traversal of this branch."""
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
    # No sequence has a block without those before it: no parent is less important than its child.
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
