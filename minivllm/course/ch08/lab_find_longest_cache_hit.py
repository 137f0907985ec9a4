"""Lab of notebook 08: the lookup of the prefix cache."""

from __future__ import annotations

from minivllm.course.grading.class_lab import ClassLab
from minivllm.kv.block import KVCacheBlock
from minivllm.kv.prefix_cache import PrefixCache
from minivllm.request import Sequence


class MyCache(PrefixCache):
    def find_longest_cache_hit(self, seq: Sequence) -> list[KVCacheBlock]:
        """The blocks that hold the longest known prefix of a sequence.

        You have: self.block_hashes(seq, num_blocks), a list of the hashes of at least that many
        blocks, from the first one on; self.get(block_hash), the block of this hash or None;
        self.block_size; seq.num_tokens. Looking changes nothing, and at least one token must be
        left to compute.
        """
        raise NotImplementedError


class LongestHit(PrefixCache):
    """Whole blocks, from the beginning, without a gap, and never the last token."""

    def find_longest_cache_hit(self, seq: Sequence) -> list[KVCacheBlock]:
        most = (seq.num_tokens - 1) // self.block_size
        hashes = self.block_hashes(seq, most)[:most]
        found = [self.get(block_hash) for block_hash in hashes]
        return found[: found.index(None)] if None in found else found


LAB = ClassLab(
    "find_longest_cache_hit",
    "Write the lookup of the prefix cache.",
    "How many blocks may be found at most, so that one token is left?",
    difficulty=3,
    minutes=30,
    stub=MyCache,
    solution=LongestHit,
)
