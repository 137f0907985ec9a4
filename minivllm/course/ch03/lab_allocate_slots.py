"""Lab of notebook 03: the method that every token's memory comes from."""

from __future__ import annotations

from minivllm.course.grading.class_lab import ClassLab
from minivllm.kv.block_table import KVCacheBlockCopy
from minivllm.kv.manager import KVCacheManager
from minivllm.request import Sequence
from minivllm.trace.records import BlockCopied, BlocksAllocated, BlocksCached


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

        Begin with 1 and 3, without copies and without the cache: notebook 03 is enough for them,
        and they are graded first. Point 2 comes with notebook 04, point 4 with notebook 08.
        """
        raise NotImplementedError


class AllocateSlots(KVCacheManager):
    """Room for the tokens of a step: all of it, or nothing has changed."""

    def allocate_slots(
        self, seq: Sequence, num_new_tokens: int, copies: list[KVCacheBlockCopy]
    ) -> list[int] | None:
        table, pool, size = self.block_tables[seq.seq_id], self.block_pool, self.block_size
        begin, end = seq.num_computed_tokens, seq.num_computed_tokens + num_new_tokens

        # 1. How many blocks does this take? And are they there?
        num_new = max(0, (end + size - 1) // size - len(table.blocks))
        shared = table.must_copy(begin)
        if num_new + (1 if shared else 0) > pool.num_free_blocks:
            return None

        # 2. Take them; the copy first, since that block comes before the new ones.
        records = []
        if shared:
            copy = table.copy_on_write(seq.seq_id, pool)
            copies.append(copy)
            records.append((BlockCopied, copy.src_block_id, copy.dst_block_id))
        new_ids = [block.block_id for block in pool.get_new_blocks(num_new)]
        table.blocks.extend(pool.blocks[block_id] for block_id in new_ids)
        if new_ids:
            records.append((BlocksAllocated, tuple(new_ids)))

        # 3. Blocks that this step fills can be found from now on.
        if self.prefix_cache is not None:
            full_now = slice(begin // size, end // size)
            filled = table.blocks[full_now]
            names = self.prefix_cache.block_hashes(seq, end // size)[full_now]
            for block, name in zip(filled, names, strict=True):
                self.prefix_cache.add(block, name)
            if filled:
                ids = tuple(block.block_id for block in filled)
                records.append((BlocksCached, ids, tuple(names)))

        if self.trace is not None:  # for the pictures
            for kind, *values in records:
                self.trace.record(kind, seq.seq_id, *values)
        return new_ids


LAB = ClassLab(
    "allocate_slots",
    "Write allocate_slots, the method that every token's memory comes from.",
    "Count everything that is needed before you take anything.",
    difficulty=4,
    minutes=120,
    stub=MyManager,
    solution=AllocateSlots,
    begins_simply=True,
)
