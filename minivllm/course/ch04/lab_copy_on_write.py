"""Lab of notebook 04: when a shared block is copied, and how."""

from __future__ import annotations

from minivllm.course.grading.class_lab import ClassLab
from minivllm.kv.block_pool import BlockPool
from minivllm.kv.block_table import BlockTable, KVCacheBlockCopy


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


class CopyOnWrite(BlockTable):
    """Writing into a shared block: a block of one's own, one reference less on the old one."""

    __slots__ = ()

    def must_copy(self, position: int) -> bool:
        if position % self.block_size == 0:
            return False  # the first position of a block: a new one, or one without tokens
        return self.blocks[position // self.block_size].ref_cnt >= 2

    def copy_on_write(self, seq_id: str, pool: BlockPool) -> KVCacheBlockCopy:
        own = pool.get_new_blocks(1)[0]
        shared = self.blocks.pop()
        self.blocks.append(own)
        pool.free_blocks([shared])
        return KVCacheBlockCopy(seq_id, src_block_id=shared.block_id, dst_block_id=own.block_id)


LAB = ClassLab(
    "copy_on_write",
    "Write copy-on-write: when a block must be copied, and what happens then.",
    "Of k sequences that share a block, k - 1 come here; the last one finds itself alone.",
    difficulty=3,
    minutes=15,
    stub=MyTable,
    solution=CopyOnWrite,
)
