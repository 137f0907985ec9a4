"""Block tables of a sequence in several KV cache groups; a window leaves null blocks behind.

(vLLM: vllm/v1/worker/gpu/block_table.py, BlockTables, on the side of the runner) (notebook 27)
"""

from __future__ import annotations

from collections.abc import Sequence

from minivllm.kv.block import KVCacheBlock
from minivllm.kv.block_pool import BlockPool
from minivllm.kv.block_table import BlockTable


class GroupBlockTable(BlockTable):
    """Block table whose first entries may be the null block: what no query reads any more."""

    __slots__ = ("num_skipped",)

    def __init__(self, block_size: int):
        super().__init__(block_size)
        self.num_skipped = 0  # leading entries that are the null block

    @property
    def held_blocks(self) -> list[KVCacheBlock]:
        """The blocks behind the null ones."""
        return self.blocks[self.num_skipped :]

    def skip(self, num_blocks: int, pool: BlockPool) -> list[KVCacheBlock]:
        """Free the blocks among the first ``num_blocks`` that are held, the last one first.

        Only what is new behind the window is looked at: a long sequence costs no more than a short
        one. Returns these blocks, in the order of their positions.
        """
        gone = self.blocks[self.num_skipped : num_blocks]
        if gone:
            end = self.num_skipped + len(gone)
            self.blocks[self.num_skipped : end] = [pool.null_block] * len(gone)
            self.num_skipped = end
            pool.free_blocks(reversed(gone))
        return gone

    def fork(self, pool: BlockPool) -> GroupBlockTable:
        """Make a table that shares all blocks: nothing is allocated, nothing copied."""
        child = type(self)(self.block_size)
        child.blocks = list(self.blocks)
        child.num_cached_blocks = self.num_cached_blocks
        child.num_skipped = self.num_skipped
        pool.touch(child.held_blocks)
        return child


class BlockTables:
    """The block tables of one sequence, one for each KV cache group.

    Most steps change none of them. The counts of tokens say when that is so, for all at once.

    Args:
        tables: of the groups, in their order.
        junction: number of tokens up to which others have the same prefix, though a window has not
            kept what would be needed there; 0: none is known.
    """

    __slots__ = ("junction", "next_skip", "num_cached_tokens", "num_slots", "tables")

    def __init__(self, tables: Sequence[GroupBlockTable], junction: int = 0):
        self.tables = tables
        self.junction = junction
        self.next_skip = 0.0  # processed tokens at which a window may leave another block behind
        self.num_slots = 0  # tokens that have room in all groups
        self.num_cached_tokens = tables[0].num_cached_blocks * tables[0].block_size

    @property
    def block_ids(self) -> list[list[int]]:
        """Block ids of each group's table; 0 is the null block."""
        return [table.block_ids for table in self.tables]

    def fork(self, pool: BlockPool) -> BlockTables:
        """Make tables that share all blocks of all groups."""
        return BlockTables([table.fork(pool) for table in self.tables], self.junction)
