"""KVCacheCoordinator: the prefix on which all KV cache groups agree.

(vLLM: vllm/v1/core/kv_cache_coordinator.py, HybridKVCacheCoordinator)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from minivllm.kv.block import KVCacheBlock
from minivllm.kv.groups.prefix_cache import GroupPrefixCache
from minivllm.kv.groups.single_type import FullAttentionManager, SingleTypeKVCacheManager
from minivllm.kv.prefix_cache import CacheHit


@dataclass(frozen=True, slots=True)
class GroupCacheHit(CacheHit):
    """Cached prefix in all groups; ``blocks`` stays empty."""

    tables: list[list[KVCacheBlock]] = field(default_factory=list)  # of each group
    # Tokens up to which some group has found more than the others: a place where prefixes part, to
    # be kept in all groups from now on. 0: none.
    junction: int = 0


class KVCacheCoordinator:
    """Finds a hit on which groups of different kinds agree.

    Args:
        managers: of the groups, in their order.
    """

    def __init__(self, managers: Sequence[SingleTypeKVCacheManager]):
        self.managers = managers
        # Groups of one kind are looked up together. Those of full attention come first: theirs is
        # the quickest way to a bound for the others.
        kinds: dict[object, list[int]] = {}
        for group, manager in enumerate(managers):
            kinds.setdefault(manager.spec, []).append(group)
        self.kinds = sorted(kinds.values(), key=lambda groups: not self._is_full(groups[0]))

    def _is_full(self, group: int) -> bool:
        return isinstance(self.managers[group], FullAttentionManager)

    def find_longest_cache_hit(
        self, cache: GroupPrefixCache, block_hashes: Sequence[bytes], max_length: int
    ) -> GroupCacheHit:
        """Find the longest prefix that can be taken from the cache in all groups.

        Each kind of group makes the prefix shorter or leaves it. A shorter one may not suit the
        kinds asked before: a window needs other blocks then. So all are asked again, until none
        has made it shorter.
        """
        tables: list[list[KVCacheBlock]] = [[] for _ in self.managers]
        is_simple = len(self.kinds) == 2 and self._is_full(self.kinds[0][0])
        longest = 0
        known: dict[
            int, int
        ] = {}  # full attention is looked up once: a shorter prefix is found, too
        length = max_length
        while True:
            before = length
            for groups in self.kinds:
                first = groups[0]
                manager = self.managers[first]
                if first in known:
                    length = min(length, known[first])
                    continue
                hits = manager.find_longest_cache_hit(cache, block_hashes, length, groups)
                length = len(hits[0]) * manager.block_size
                longest = max(longest, length)
                for group, hit in zip(groups, hits, strict=True):
                    tables[group] = hit
                if self._is_full(first):
                    known[first] = length
            if length == before or is_simple:
                break
        for manager, table in zip(self.managers, tables, strict=True):
            del table[length // manager.block_size :]
        return GroupCacheHit(
            num_tokens=length, tables=tables, junction=longest if longest > length else 0
        )
