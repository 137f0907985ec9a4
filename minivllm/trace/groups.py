"""TableGroup: what a trace knows of a KV cache group, whose layers share a block table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class TableGroup:
    """Sizes of a KV cache group.

    Args:
        block_size: positions per block.
        sliding_window: how many tokens a token sees, itself included; None: all.
    """

    block_size: int
    sliding_window: int | None = None

    @property
    def kind(self) -> str:
        """ "full", or "window 64"."""
        return "full" if self.sliding_window is None else f"window {self.sliding_window}"


class GroupLabel(NamedTuple):
    """Names of a group in figures: "w" where there is little room, else "window 64"."""

    key: str
    name: str


def group_labels(groups: Sequence[TableGroup]) -> list[GroupLabel]:
    """Labels of several groups; none of one alone, which needs no name.

    Groups of one kind are told apart: "window 17 w1", "window 17 w2".
    """
    if len(groups) < 2:
        return []
    kinds = Counter(group.kind for group in groups)
    letters = Counter(group.kind[0] for group in groups)
    numbers: Counter[str] = Counter()
    labels = []
    for group in groups:
        key = group.kind[0]
        numbers[key] += 1
        key += str(numbers[key]) if letters[key] > 1 else ""
        labels.append(GroupLabel(key, group.kind + (f" {key}" if kinds[group.kind] > 1 else "")))
    return labels
