"""Rules of one KV cache group: what it keeps, what a hit in it needs, and what is worth finding.

(vLLM: vllm/v1/core/single_type_kv_cache_manager.py) (notebook 27)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from math import inf

from minivllm.kv.block import KVCacheBlock
from minivllm.kv.groups.prefix_cache import GroupPrefixCache
from minivllm.kv.kv_cache_spec import KVCacheSpec, SlidingWindowSpec
from minivllm.utils.math_utils import cdiv


class SingleTypeKVCacheManager(ABC):
    """Rules of a group whose layers have one KVCacheSpec.

    Args:
        spec: of the group.
        alignment_tokens: a hit ends at a multiple of it: of all groups' block sizes.
        max_blocks: what one sequence holds at most.
        null_block: stands where nothing is kept.
        retention_interval: what a window keeps for others, see ``SlidingWindowManager``.
    """

    def __init__(
        self,
        spec: KVCacheSpec,
        alignment_tokens: int,
        max_blocks: int,
        null_block: KVCacheBlock,
        retention_interval: int | None = 0,
    ):
        self.spec = spec
        self.block_size = spec.block_size
        self.alignment_tokens = alignment_tokens
        self.max_blocks = max_blocks
        self.null_block = null_block
        self.retention_interval = retention_interval

    @abstractmethod
    def num_skipped_blocks(self, num_computed_tokens: int) -> int:
        """Number of leading blocks that no query from this position on reads."""

    @abstractmethod
    def next_skip(self, num_skipped_blocks: int) -> float:
        """The first position from which on one more block than these is not read; or infinity."""

    @abstractmethod
    def find_longest_cache_hit(
        self,
        cache: GroupPrefixCache,
        block_hashes: Sequence[bytes],
        max_length: int,
        groups: Sequence[int],
    ) -> list[list[KVCacheBlock]]:
        """Find the longest prefix that groups of this kind have in common.

        Args:
            cache: where blocks are found.
            block_hashes: of the sequence, in the cache's pieces.
            max_length: of the prefix, in tokens.
            groups: that must all have it.

        Returns:
            The blocks of each group, equally many; null blocks where none is needed.
        """

    @abstractmethod
    def reachable_blocks(self, first: int, end: int, boundaries: Iterable[int]) -> Iterable[int]:
        """Blocks from ``first`` to ``end - 1`` that others should find, in ascending order.

        Args:
            first, end: indices of a sequence's blocks.
            boundaries: numbers of tokens where another sequence may go on.
        """

    def cached_blocks(
        self,
        cache: GroupPrefixCache,
        block_hashes: Sequence[bytes],
        index: int,
        groups: Sequence[int],
    ) -> list[KVCacheBlock] | None:
        """The block ``index`` of a sequence in each of these groups; None unless all have it."""
        num_pieces = (index + 1) * self.block_size // cache.block_size
        return cache.get_in_groups(block_hashes[num_pieces - 1], groups)

    def num_aligned_blocks(self, num_tokens: int) -> int:
        """Number of full blocks up to the last place where a hit may end."""
        return num_tokens // self.alignment_tokens * self.alignment_tokens // self.block_size


class FullAttentionManager(SingleTypeKVCacheManager):
    """Full attention: all is kept, and a hit needs every block from the start."""

    def num_skipped_blocks(self, num_computed_tokens: int) -> int:
        return 0

    def next_skip(self, num_skipped_blocks: int) -> float:
        return inf

    def find_longest_cache_hit(
        self,
        cache: GroupPrefixCache,
        block_hashes: Sequence[bytes],
        max_length: int,
        groups: Sequence[int],
    ) -> list[list[KVCacheBlock]]:
        """Find the longest run of blocks from the start."""
        found: list[list[KVCacheBlock]] = []
        for index in range(max_length // self.block_size):
            blocks = self.cached_blocks(cache, block_hashes, index, groups)
            if blocks is None:
                break
            found.append(blocks)
        num_blocks = self.num_aligned_blocks(len(found) * self.block_size)
        return [[blocks[i] for blocks in found[:num_blocks]] for i in range(len(groups))]

    def reachable_blocks(self, first: int, end: int, boundaries: Iterable[int]) -> Iterable[int]:
        return range(first, end)


class SlidingWindowManager(SingleTypeKVCacheManager):
    """Sliding window: the last tokens are kept, and a hit needs only the blocks before its end.

    So of the many places where a hit could end most are never asked for. ``retention_interval``
    says at which ones blocks can be found: 0 only at boundaries, that is before the last token of a
    prompt, and where a prefix is known to be shared; ``n`` also every ``n`` tokens; None at all.
    """

    spec: SlidingWindowSpec

    @property
    def num_blocks_for_hit(self) -> int:
        """Number of blocks before a hit's end that the next token's window reaches into."""
        return cdiv(self.spec.sliding_window - 1, self.block_size)

    def num_skipped_blocks(self, num_computed_tokens: int) -> int:
        num_tokens = num_computed_tokens - self.spec.sliding_window + 1
        return num_tokens // self.block_size if num_tokens > 0 else 0

    def next_skip(self, num_skipped_blocks: int) -> float:
        return (num_skipped_blocks + 1) * self.block_size + self.spec.sliding_window - 1

    def find_longest_cache_hit(
        self,
        cache: GroupPrefixCache,
        block_hashes: Sequence[bytes],
        max_length: int,
        groups: Sequence[int],
    ) -> list[list[KVCacheBlock]]:
        """Find the last run of enough blocks, from the right; else the run that begins at 0."""
        hits = [[self.null_block] * (max_length // self.block_size) for _ in groups]
        run = 0
        for index in reversed(range(max_length // self.block_size)):
            if run == 0 and (index + 1) * self.block_size % self.alignment_tokens:
                continue  # no hit ends here
            blocks = self.cached_blocks(cache, block_hashes, index, groups)
            if blocks is None:
                run = 0
                continue
            for hit, block in zip(hits, blocks, strict=True):
                hit[index] = block
            run += 1
            if run >= self.num_blocks_for_hit:
                return [hit[: index + run] for hit in hits]
        num_blocks = self.num_aligned_blocks(run * self.block_size)
        return [hit[:num_blocks] for hit in hits]

    def reachable_blocks(self, first: int, end: int, boundaries: Iterable[int]) -> Iterable[int]:
        """The blocks that a hit needs, at the end of each interval and at boundaries."""
        needed = self.num_blocks_for_hit
        interval = self.alignment_tokens
        if self.retention_interval is not None:
            interval = self.retention_interval
        kept: set[int] = set()
        if interval > 0:
            period = interval // self.block_size
            kept.update(i for i in range(first, end) if i % period >= period - needed)
        if self.retention_interval is not None:
            for boundary in boundaries:
                last = self.num_aligned_blocks(boundary)
                kept.update(range(max(first, last - needed), min(end, last)))
        return sorted(kept)
