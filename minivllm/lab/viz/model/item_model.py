"""Items of a run, such as pictures: letters and colours, and what a step encodes and keeps.

(notebook 25)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from minivllm.lab.viz.draw.palette import Owner, item_owner
from minivllm.trace.state import State


@dataclass(frozen=True)
class ItemPart:
    """An item's part of a step's bar."""

    item: Owner
    num_embeds: int
    is_used: bool = True  # False: it may be evicted


@dataclass
class ItemUse:
    """Items that one step encodes, and those that the encoder cache has after its planning."""

    encoded: list[ItemPart] = field(default_factory=list)
    kept: list[ItemPart] = field(default_factory=list)


@dataclass(frozen=True)
class ItemLane:
    """Bars of items, one a step.

    Args:
        name: of the lane.
        limit_name: what its limit is called.
        parts: of each step's bar.
        limit: embeddings at most; 0 if it is not known.
    """

    name: str
    limit_name: str
    parts: list[list[ItemPart]]
    limit: int

    @property
    def values(self) -> list[int]:
        """Embeddings of each step."""
        return [sum(part.num_embeds for part in parts) for parts in self.parts]


class Items:
    """Letters of items, in the order in which sequences referred to them, and use by step."""

    def __init__(self) -> None:
        self.owners: dict[str, Owner] = {}  # by identifier
        self.steps: dict[int, ItemUse] = {}

    def owner(self, identifier: str) -> Owner:
        """Letter and colours of an item."""
        if identifier not in self.owners:
            self.owners[identifier] = item_owner(identifier, len(self.owners))
        return self.owners[identifier]

    def note_encoded(self, step: int, identifier: str, num_embeds: int) -> None:
        """Note an item that is encoded in a step."""
        use = self.steps.setdefault(step, ItemUse())
        use.encoded.append(ItemPart(self.owner(identifier), num_embeds))

    def note_plan(self, state: State, step: int) -> None:
        """Note what the cache has when a step is planned: the next to be evicted come last."""
        if not state.items:
            return
        order = [*(name for name in state.items if name not in state.evictable_items)]
        order += reversed(state.evictable_items)
        entries = [(self.owner(name), state.items[name]) for name in order]
        kept = [ItemPart(owner, entry.num_embeds, bool(entry.holders)) for owner, entry in entries]
        self.steps.setdefault(step, ItemUse()).kept = kept

    def of(self, steps: Iterable[int]) -> list[ItemUse]:
        """Use of these steps; empty if none of them has an item."""
        uses = [self.steps.get(step, ItemUse()) for step in steps]
        return uses if any(use.encoded or use.kept for use in uses) else []

    def forget_before(self, first: int) -> None:
        """Keep nothing of the steps before this one; letters stay."""
        self.steps = {step: use for step, use in self.steps.items() if step >= first}
