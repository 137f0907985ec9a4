"""PrefixCache: which full blocks are there already, found by what they and all before them hold.

A block's name is a digest of the name of the block before it, its own tokens and whatever else its
content depends on. So equal names mean equal prefixes, and the cache needs no tree.
(vLLM: vllm/v1/core/kv_cache_utils.py, hash_block_tokens; block_pool.py, BlockHashToBlockMap)
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING

from minivllm.request import Sequence

if TYPE_CHECKING:
    from minivllm.kv.block_pool import KVCacheBlock

_ROOT = bytes(32)  # the name of the empty prefix


def hash_block(parent: bytes, token_ids: list[int], extra: str | None = None) -> bytes:
    """The name of a full block: 32 bytes.

    A real digest and not ``hash()``: a collision would give one user another one's context.

    Args:
        parent: the name of the block before, or 32 zero bytes.
        token_ids: exactly ``block_size`` of them.
        extra: what else the content depends on (a cache salt).
    """
    content = parent + array("q", token_ids).tobytes()
    return sha256(content if extra is None else content + extra.encode()).digest()


class PrefixCache:
    """Blocks by name. Two sequences may have computed the same block; both can be found.

    Args:
        block_size: positions per block.
    """

    def __init__(self, block_size: int):
        self.block_size = block_size
        self.num_queried_tokens = 0  # of all sequences that were admitted
        self.num_hit_tokens = 0
        self._blocks: dict[bytes, dict[int, KVCacheBlock]] = {}

    def __iter__(self) -> Iterator[KVCacheBlock]:
        return (block for same in self._blocks.values() for block in same.values())

    def block_hashes(self, seq: Sequence, num_blocks: int) -> list[bytes]:
        """The names of a sequence's blocks: the first ``num_blocks`` and all others known so far.

        Each is computed once in its life, and the list is the sequence's own: a copy would cost
        more the longer the sequence has grown.
        """
        known, size = seq.block_hashes, self.block_size
        for i in range(len(known), num_blocks):
            parent, extra = (known[-1], None) if known else (_ROOT, seq.request.cache_salt)
            known.append(hash_block(parent, seq.token_ids[i * size : (i + 1) * size], extra))
        return known

    def find_longest_cache_hit(self, seq: Sequence) -> list[KVCacheBlock]:
        """The blocks that hold the longest known prefix of a sequence. Looking changes nothing.

        At least one token is left to compute, since its logits are what is asked for: a prompt of
        exactly ``k`` blocks, all known, hits ``k - 1``.
        """
        hit = []
        at_most = (seq.num_tokens - 1) // self.block_size
        for name in islice(self.block_hashes(seq, at_most), at_most):
            block = self.get(name)
            if block is None:
                break
            hit.append(block)
        return hit

    def get(self, name: bytes) -> KVCacheBlock | None:
        """A block of this name, the one that has had it longest; None if there is none."""
        same = self._blocks.get(name)
        return next(iter(same.values())) if same else None

    def add(self, block: KVCacheBlock, name: bytes) -> None:
        """Let a block be found by this name."""
        block.block_hash = name
        self._blocks.setdefault(name, {})[block.block_id] = block

    def remove(self, block: KVCacheBlock) -> None:
        """Forget a block: it is about to hold something else."""
        same = self._blocks[block.block_hash]
        del same[block.block_id]
        if not same:
            del self._blocks[block.block_hash]
        block.block_hash = None
