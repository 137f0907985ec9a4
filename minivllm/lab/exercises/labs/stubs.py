"""Stubs of the labs: classes that plug into the engine, with one method to be written."""

from __future__ import annotations

from minivllm.kv.block import KVCacheBlock
from minivllm.kv.block_pool import BlockPool
from minivllm.kv.block_table import BlockTable, KVCacheBlockCopy
from minivllm.kv.manager import KVCacheManager
from minivllm.kv.prefix_cache import PrefixCache
from minivllm.request import Sequence


class MyManager(KVCacheManager):
    def allocate_slots(
        self, seq: Sequence, num_new_tokens: int, copies: list[KVCacheBlockCopy]
    ) -> list[int] | None:
        """Give a sequence the blocks it lacks to compute this many more tokens.

        You have: self.block_tables[seq.seq_id], a BlockTable with blocks (a list of KVCacheBlock),
        must_copy(position) and copy_on_write(seq_id, pool); self.block_pool with num_free_blocks
        and get_new_blocks(n); self.block_size; seq.num_computed_tokens; and self.prefix_cache,
        which is None or has block_hashes(seq, num_blocks), a list of the hashes of at least this
        many blocks, from the first one on, and add(block, block_hash).

        1. If there are too few free blocks, for new ones and for the copy, return None; then
           nothing may have changed.
        2. If the next position is in a block that others hold, too: copy_on_write, and append what
           it returns to copies. Before new blocks are taken.
        3. Append new blocks to the table.
        4. With a prefix cache: blocks that are full once these tokens are computed, and were not
           before, are added to it.

        Returns: the ids of the new blocks, often none.
        """
        raise NotImplementedError


class MyTable(BlockTable):
    def must_copy(self, position: int) -> bool:
        """Would writing this position change a block that others hold, too?

        You have: self.blocks (a list of KVCacheBlock, each with a ref_cnt) and self.block_size.
        A position at the beginning of a block is never in question: its block is new.
        """
        raise NotImplementedError

    def copy_on_write(self, seq_id: str, pool: BlockPool) -> KVCacheBlockCopy:
        """Put a block of its own in the place of the last one, which others hold, too.

        pool.get_new_blocks(1) takes a block, pool.free_blocks([block]) drops one reference on one.

        Returns: KVCacheBlockCopy(seq_id, src_block_id, dst_block_id): from where to where.
        """
        raise NotImplementedError


class MyCache(PrefixCache):
    def find_longest_cache_hit(self, seq: Sequence) -> list[KVCacheBlock]:
        """The blocks that hold the longest known prefix of a sequence.

        You have: self.block_hashes(seq, num_blocks), a list of the hashes of at least so many
        blocks, from the first one on; self.get(name), a block of that name or None;
        self.block_size; seq.num_tokens. Looking changes nothing, and at least one token must be
        left to compute.
        """
        raise NotImplementedError
