"""KVCacheSpec: what a layer keeps of the tokens. Layers that share block tables are a group.

All sizes of the KV cache come from here: how many blocks there are, how many bytes each takes, and
where in a block a layer's K and V are.
(vLLM: vllm/v1/kv_cache_interface.py, and ``get_kv_cache_groups`` in vllm/v1/core/kv_cache_utils.py)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from minivllm.config.kv_cache_size import kv_bytes_per_token
from minivllm.trace.groups import TableGroup
from minivllm.utils.math_utils import cdiv

DRAFT = "draft_model."  # before the names of a draft model's layers
_MOSTLY_EQUAL = 1.5  # kinds of layers that differ less in number are padded, not divided


@dataclass(frozen=True)
class KVCacheSpec(ABC):
    """Format of one layer's part of a block: its *page*."""

    block_size: int  # positions per block
    page_size_padded: int = field(default=0, kw_only=True)  # bytes; 0: as many as the numbers take

    @property
    @abstractmethod
    def page_size_bytes(self) -> int:
        """Bytes of a page."""

    @abstractmethod
    def max_blocks(self, max_model_len: int, max_in_flight_tokens: int) -> int:
        """Blocks that one sequence holds at most.

        Args:
            max_model_len: the longest sequence.
            max_in_flight_tokens: those that all plans in flight compute, at most.
        """


@dataclass(frozen=True)
class AttentionSpec(KVCacheSpec):
    """A layer that keeps K and V."""

    num_kv_heads: int
    head_size: int  # numbers of a head
    bytes_per_number: int
    bytes_per_scale: int = 0  # beside each token's K and V of a head, as in int8

    @property
    def page_size_bytes(self) -> int:
        numbers = kv_bytes_per_token(1, self.num_kv_heads, self.head_size, self.bytes_per_number)
        scales = kv_bytes_per_token(1, self.num_kv_heads, 1, self.bytes_per_scale)
        return self.page_size_padded or self.block_size * (numbers + scales)


@dataclass(frozen=True)
class FullAttentionSpec(AttentionSpec):
    """A layer that keeps all tokens."""

    def max_blocks(self, max_model_len: int, max_in_flight_tokens: int) -> int:
        """Blocks that one sequence holds at most: all of its tokens'."""
        return cdiv(max_model_len, self.block_size)


@dataclass(frozen=True)
class SlidingWindowSpec(AttentionSpec):
    """A layer that keeps the last tokens only: a token sees ``sliding_window``, itself included."""

    sliding_window: int = field(kw_only=True)

    def max_blocks(self, max_model_len: int, max_in_flight_tokens: int) -> int:
        """Blocks that one sequence holds at most: of the window, and of what is in flight.

        One more, since a window may begin in the middle of a block.
        """
        num_tokens = min(self.sliding_window - 1 + max_in_flight_tokens, max_model_len)
        return cdiv(num_tokens, self.block_size) + 1


@dataclass(frozen=True)
class KVCacheGroupSpec:
    """Layers that share block tables."""

    layer_names: tuple[str, ...]
    kv_cache_spec: KVCacheSpec  # the first one's: pages of others may have other sizes

    @property
    def is_full(self) -> bool:
        """True if its layers keep all tokens."""
        return isinstance(self.kv_cache_spec, FullAttentionSpec)


class LayerPlace(NamedTuple):
    """Place of a layer's page in a block, and the group whose block ids lead there."""

    group: int
    place: int


def get_kv_cache_groups(
    kv_cache_specs: Iterable[Mapping[str, KVCacheSpec]],
) -> tuple[KVCacheGroupSpec, ...]:
    """Form the groups of a whole model; none if no layer keeps anything.

    Layers that keep the same tokens are one group, if all do. Else every kind is cut into groups of
    equally many layers, so that a block has the same bytes whichever group holds it; a kind's last
    groups may have one layer less, whose bytes are lost. Kinds are in the order of their first
    layers. A draft model's layers are in the first group of full attention.

    Args:
        kv_cache_specs: of each rank's layers, by name. A pipeline stage has only some of them.

    Raises:
        ValueError: if there is a draft model, and no group of full attention.
    """
    specs = {name: spec for rank in kv_cache_specs for name, spec in rank.items()}
    drafts = tuple(name for name in specs if name.startswith(DRAFT))
    layers = {name: spec for name, spec in specs.items() if name not in drafts}
    if not layers:
        return ()
    if len({_kept_tokens(spec) for spec in layers.values()}) == 1:
        groups = [KVCacheGroupSpec(tuple(layers), next(iter(layers.values())))]
    else:
        groups = _groups_of_equal_pages(_with_equal_pages(layers))
    if drafts:
        _add_drafts(groups, drafts)
    return tuple(groups)


def _kept_tokens(spec: KVCacheSpec) -> tuple[type[KVCacheSpec], int, int | None]:
    """Layers of which this is equal may share block tables, whatever their heads are."""
    return type(spec), spec.block_size, getattr(spec, "sliding_window", None)


def _with_equal_pages(layers: Mapping[str, KVCacheSpec]) -> dict[str, KVCacheSpec]:
    """Give all layers the largest page: of more positions if these fill it, else a padded one."""
    largest = max(spec.page_size_bytes for spec in layers.values())

    def fitted(spec: KVCacheSpec) -> KVCacheSpec:
        ratio, rest = divmod(largest, spec.page_size_bytes)
        if rest:
            return replace(spec, page_size_padded=largest)
        return replace(spec, block_size=spec.block_size * ratio)

    return {name: fitted(spec) for name, spec in layers.items()}


def _groups_of_equal_pages(layers: Mapping[str, KVCacheSpec]) -> list[KVCacheGroupSpec]:
    """Cut each kind of layers into groups of as many as the smallest kind has.

    If no kind is much larger than that, each is one group, and the smaller ones are padded. Layers
    are dealt out in turn: so each pipeline stage has its share of every group.
    """
    kinds: dict[KVCacheSpec, list[str]] = {}
    for name, spec in layers.items():
        kinds.setdefault(spec, []).append(name)
    sizes = [len(names) for names in kinds.values()]
    size = max(sizes) if max(sizes) < _MOSTLY_EQUAL * min(sizes) else min(sizes)
    return [
        KVCacheGroupSpec(tuple(names[first :: cdiv(len(names), size)]), spec)
        for spec, names in kinds.items()
        for first in range(cdiv(len(names), size))
    ]


def _add_drafts(groups: list[KVCacheGroupSpec], drafts: tuple[str, ...]) -> None:
    """Put a draft model's layers behind the block ids of the first group of full attention."""
    index = next((i for i, group in enumerate(groups) if group.is_full), None)
    if index is None:
        raise ValueError(
            "a draft model keeps all tokens, but every layer of the model has a sliding window, so "
            "that no block table has all of them; use another speculative method, or "
            "disable_hybrid_kv_cache_manager=True."
        )
    group = groups[index]
    groups[index] = replace(group, layer_names=group.layer_names + drafts)


def bytes_per_block(
    groups: Iterable[KVCacheGroupSpec], kv_cache_specs: Mapping[str, KVCacheSpec]
) -> int:
    """Bytes of a block over a rank's layers: a block holds one group's pages, so the most of any.

    A draft model's pages have a place of their own, whichever group holds the block.

    Args:
        groups: of the whole model.
        kv_cache_specs: of this rank's layers, by name.
    """
    total = 0
    for of_draft in (False, True):
        sizes = [
            sum(kv_cache_specs[name].page_size_bytes for name in group.layer_names
                if name in kv_cache_specs and name.startswith(DRAFT) == of_draft)
            for group in groups
        ]  # fmt: skip
        total += max(sizes, default=0)
    return total


def layer_places(
    groups: Sequence[KVCacheGroupSpec], layer_names: Iterable[str]
) -> list[LayerPlace]:
    """Place of each layer of a rank: the i-th that it has of a group gets the i-th page.

    Args:
        groups: of the whole model.
        layer_names: of this rank's layers.
    """
    group_of = {name: i for i, group in enumerate(groups) for name in group.layer_names}
    num_taken = [0] * len(groups)
    places = []
    for name in layer_names:
        group = group_of[name]
        places.append(LayerPlace(group, num_taken[group]))
        num_taken[group] += 1
    return places


def table_groups(specs: Iterable[KVCacheSpec]) -> tuple[TableGroup, ...]:
    """KV cache groups as a trace knows them; none if there is one alone that keeps all tokens."""
    groups = tuple(
        TableGroup(spec.block_size, getattr(spec, "sliding_window", None)) for spec in specs
    )
    return () if [group.kind for group in groups] == ["full"] else groups
