"""PrefixCache: full blocks by block hash, so that an equal prefix is not computed again.

A block hash is a digest of the hash of the block before it, the block's own tokens and whatever
else its content depends on. So equal hashes mean equal prefixes, and the cache needs no tree.
(vLLM: vllm/v1/core/kv_cache_utils.py, hash_block_tokens; block_pool.py, BlockHashToBlockMap)
(notebooks 08, 08b, 17)
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from typing import Any

from minivllm.kv.block import KVCacheBlock
from minivllm.request import Request, Sequence

_ROOT = bytes(32)  # the hash of the empty prefix


def generate_block_hash_extra_keys(request: Request, start: int, end: int) -> tuple[Any, ...]:
    """Extra keys: what K and V of positions ``start`` to ``end - 1`` depend on beside tokens.

    Adapter and salt go into the first block's hash; the chain carries them on. An item goes into
    that of each block that its placeholders touch, with its place there.
    """
    keys: list[Any] = []
    if start == 0:
        if request.lora is not None:
            keys += ["lora", *request.lora[1:]]
        if request.cache_salt is not None:
            keys += ["salt", request.cache_salt]
    for feature in request.mm_features:
        position = feature.mm_position
        if position.offset < end and position.end > start:
            keys.append(("mm", feature.identifier, position.offset - start))
    return tuple(keys)


def hash_block_tokens(
    parent: bytes, token_ids: list[int], extra_keys: tuple[Any, ...] = ()
) -> bytes:
    """The block hash of a full block: 32 bytes.

    A real digest and not ``hash()``: a collision would give one user another one's context.

    Args:
        parent: the hash of the block before, or 32 zero bytes.
        token_ids: exactly ``block_size`` of them.
        extra_keys: see ``generate_block_hash_extra_keys``.
    """
    content = parent + array("q", token_ids).tobytes()
    if extra_keys:  # as Python writes them: no two lists look the same
        content += repr(extra_keys).encode()
    return sha256(content).digest()


@dataclass(frozen=True, slots=True)
class CacheHit:
    """Cached prefix of a sequence. ``CacheHit()`` is a miss.

    Only the manager that found it reads its blocks; all others ask for the number of tokens.
    (vLLM: ``KVCacheBlocks`` and the number beside it, vllm/v1/core/kv_cache_manager.py)
    """

    blocks: list[KVCacheBlock] = field(default_factory=list)
    num_tokens: int = 0  # that need not be computed


@dataclass
class PrefixCacheStats:
    """Tokens looked up and tokens found, of all sequences so far.

    What a preempted sequence finds again is mostly its own, so it is counted apart.
    (vLLM: vllm/v1/metrics/stats.py)
    """

    requests: int = 0  # sequences that were admitted
    queries: int = 0  # tokens that they had
    hits: int = 0  # tokens of these that were cached
    preempted_requests: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0

    def record(self, num_tokens: int, num_hits: int, preempted: bool) -> None:
        if preempted:
            self.preempted_requests += 1
            self.preempted_queries += num_tokens
            self.preempted_hits += num_hits
        else:
            self.requests += 1
            self.queries += num_tokens
            self.hits += num_hits


class CachingMetrics:
    """Queries and hits of the last ``max_recent_requests`` requests, a moving window."""

    def __init__(self, max_recent_requests: int = 1000):
        self._recent: deque[tuple[int, int]] = deque()  # tokens looked up, tokens found
        self._max_recent_requests = max_recent_requests
        self.queries = self.hits = 0  # their sums

    def observe(self, num_tokens: int, num_hits: int) -> None:
        self._recent.append((num_tokens, num_hits))
        self.queries += num_tokens
        self.hits += num_hits
        if len(self._recent) > self._max_recent_requests:
            queries, hits = self._recent.popleft()
            self.queries -= queries
            self.hits -= hits


class PrefixCache:
    """Blocks by block hash. Several blocks may have the same, if sequences computed them at once.

    Args:
        block_size: positions per block.
    """

    def __init__(self, block_size: int):
        self.block_size = block_size
        self.stats = PrefixCacheStats()
        self.recent = CachingMetrics()
        self._blocks: dict[bytes, dict[int, KVCacheBlock]] = {}

    def __iter__(self) -> Iterator[KVCacheBlock]:
        return (block for same in self._blocks.values() for block in same.values())

    def block_hashes(self, seq: Sequence, num_blocks: int) -> list[bytes]:
        """Block hashes of a sequence: of the first ``num_blocks``, and of all others known so far.

        Each is computed once in its life, and the list is the sequence's own: a copy would cost
        more the longer the sequence has grown.
        """
        known = seq.block_hashes
        items = seq.request.mm_features
        size = self.block_size
        for i in range(len(known), num_blocks):
            start, end = i * size, (i + 1) * size
            extra_keys: tuple[Any, ...] = ()
            if start == 0 or items:  # of text nothing else has any
                extra_keys = generate_block_hash_extra_keys(seq.request, start, end)
            parent = known[-1] if known else _ROOT
            known.append(hash_block_tokens(parent, seq.token_ids[start:end], extra_keys))
        return known

    def find_longest_cache_hit(self, seq: Sequence) -> list[KVCacheBlock]:
        """The blocks that hold the longest known prefix of a sequence. Looking changes nothing.

        At least one token is left to compute, since its logits are what is asked for: a prompt of
        exactly ``k`` blocks, all known, hits ``k - 1``.
        """
        hit = []
        at_most = (seq.num_tokens - 1) // self.block_size
        for block_hash in islice(self.block_hashes(seq, at_most), at_most):
            block = self.get(block_hash)
            if block is None:
                break
            hit.append(block)
        return hit

    def record_queries(self, seqs: Iterable[Sequence]) -> None:
        """Count the queries of sequences that were just admitted, and their hits."""
        for seq in seqs:
            if seq.skip_reading_prefix_cache:
                continue
            hits = seq.num_computed_tokens
            preempted = seq.request.num_preemptions > 0
            self.stats.record(seq.num_tokens, hits, preempted)
            if not preempted:  # a hit rate is that of arrivals
                self.recent.observe(seq.num_tokens, hits)

    def get(self, block_hash: bytes) -> KVCacheBlock | None:
        """The block of this hash that was cached first; None if there is none."""
        same = self._blocks.get(block_hash)
        return next(iter(same.values())) if same else None

    def add(self, block: KVCacheBlock, block_hash: bytes) -> None:
        """Cache a block under this hash."""
        block.block_hash = block_hash
        self._blocks.setdefault(block_hash, {})[block.block_id] = block

    def remove(self, block: KVCacheBlock) -> None:
        """Remove a block: it is about to be overwritten."""
        assert block.block_hash is not None, "it can be found"
        same = self._blocks[block.block_hash]
        del same[block.block_id]
        if not same:
            del self._blocks[block.block_hash]
        block.block_hash = None

    def reset(self) -> None:
        """Forget all blocks. What has been counted stays."""
        self._blocks.clear()
