"""One right answer to each lab, written from the definition and not by calling the original."""

from __future__ import annotations

from minivllm.kv.block import KVCacheBlock
from minivllm.kv.block_pool import BlockPool
from minivllm.kv.block_table import BlockTable, KVCacheBlockCopy
from minivllm.kv.manager import KVCacheManager
from minivllm.kv.prefix_cache import PrefixCache
from minivllm.records import BlockCopied, BlocksAllocated, BlocksCached
from minivllm.request import Sequence


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


class CopyOnWrite(BlockTable):
    """Writing into a shared block: a block of one's own, one reference less on the old one."""

    __slots__ = ()

    def must_copy(self, position: int) -> bool:
        if position % self.block_size == 0:
            return False  # the first position of a block: a new one, or one that nobody has begun
        return self.blocks[position // self.block_size].ref_cnt >= 2

    def copy_on_write(self, seq_id: str, pool: BlockPool) -> KVCacheBlockCopy:
        own = pool.get_new_blocks(1)[0]
        shared = self.blocks.pop()
        self.blocks.append(own)
        pool.free_blocks([shared])
        return KVCacheBlockCopy(seq_id, src=shared.block_id, dst=own.block_id)


class LongestHit(PrefixCache):
    """Whole blocks, from the beginning, without a gap, and never the last token."""

    def find_longest_cache_hit(self, seq: Sequence) -> list[KVCacheBlock]:
        most = (seq.num_tokens - 1) // self.block_size
        found = [self.get(name) for name in self.block_hashes(seq, most)[:most]]
        return found[: found.index(None)] if None in found else found
