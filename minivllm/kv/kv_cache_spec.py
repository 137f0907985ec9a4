"""KVCacheSpec: what a layer keeps of the tokens. Layers that share block tables are a group.

All sizes of the KV cache come from here: how many blocks there are, how many bytes each takes, and
where in a block a layer's K and V are.
(vLLM: vllm/v1/kv_cache_interface.py, and ``get_kv_cache_groups`` in vllm/v1/core/kv_cache_utils.py)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from minivllm.config.kv_cache_size import kv_bytes_per_token


@dataclass(frozen=True)
class KVCacheSpec(ABC):
    """Format of one layer's part of a block: its *page*."""

    block_size: int  # positions per block

    @property
    @abstractmethod
    def page_size_bytes(self) -> int:
        """Bytes of a page."""


@dataclass(frozen=True)
class FullAttentionSpec(KVCacheSpec):
    """A layer that keeps K and V of all tokens."""

    num_kv_heads: int
    head_size: int  # numbers of a head
    bytes_per_number: int
    bytes_per_scale: int = 0  # beside each token's K and V of a head, as in int8

    @property
    def page_size_bytes(self) -> int:
        numbers = kv_bytes_per_token(1, self.num_kv_heads, self.head_size, self.bytes_per_number)
        scales = kv_bytes_per_token(1, self.num_kv_heads, 1, self.bytes_per_scale)
        return self.block_size * (numbers + scales)


@dataclass(frozen=True)
class KVCacheGroupSpec:
    """Layers that share block tables."""

    layer_names: tuple[str, ...]
    kv_cache_spec: KVCacheSpec  # the first one's: pages of others may have other sizes


class LayerPlace(NamedTuple):
    """Place of a layer's page in a block, and the group whose block ids lead there."""

    group: int
    place: int


def get_kv_cache_groups(
    kv_cache_specs: Iterable[Mapping[str, KVCacheSpec]],
) -> tuple[KVCacheGroupSpec, ...]:
    """Form the groups of a whole model.

    Today all layers keep all tokens, so that there is one group; none if no layer keeps anything.

    Args:
        kv_cache_specs: of each rank's layers, by name. A pipeline stage has only some of them.
    """
    layers = {name: spec for specs in kv_cache_specs for name, spec in specs.items()}
    if not layers:
        return ()
    return (KVCacheGroupSpec(tuple(layers), next(iter(layers.values()))),)


def bytes_per_block(
    groups: Iterable[KVCacheGroupSpec], kv_cache_specs: Mapping[str, KVCacheSpec]
) -> int:
    """Bytes of a block over a rank's layers: a block holds one group's pages, so the most of any.

    Args:
        groups: of the whole model.
        kv_cache_specs: of this rank's layers, by name.
    """
    sizes = [
        sum(kv_cache_specs[name].page_size_bytes for name in group.layer_names
            if name in kv_cache_specs)
        for group in groups
    ]  # fmt: skip
    return max(sizes, default=0)


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
