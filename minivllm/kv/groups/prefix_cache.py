"""GroupPrefixCache: a block can be found by its hash and by the KV cache group that filled it.

Blocks of two groups hold the same tokens, but in other layers: with the hash alone a layer would
read what another one has written.
(vLLM: ``make_block_hash_with_group_id`` in vllm/v1/core/kv_cache_utils.py)
"""

from __future__ import annotations

from collections.abc import Iterable

from minivllm.kv.block import KVCacheBlock
from minivllm.kv.prefix_cache import PrefixCache

_GROUP_BYTES = 2


class GroupPrefixCache(PrefixCache):
    """PrefixCache whose keys are a block hash and a group.

    Its ``block_size`` is that of the pieces in which tokens are hashed. A group's blocks may be
    several pieces long: the hash of a block is that of its last piece, since each goes on from the
    one before.
    """

    def key(self, block_hash: bytes, group: int) -> bytes:
        """The key of a group's block."""
        return block_hash + group.to_bytes(_GROUP_BYTES, "big")

    def group_of(self, block: KVCacheBlock) -> int:
        """The group that filled a block which can be found."""
        assert block.block_hash is not None, "it can be found"
        return int.from_bytes(block.block_hash[-_GROUP_BYTES:], "big")

    def get_in_groups(self, block_hash: bytes, groups: Iterable[int]) -> list[KVCacheBlock] | None:
        """The block of this hash in each of some groups; None unless all of them have one."""
        found = []
        for group in groups:
            block = self.get(self.key(block_hash, group))
            if block is None:
                return None
            found.append(block)
        return found
