"""KVCacheManager: the only door the scheduler knocks on. Is there room? Which blocks?

(vLLM: vllm/v1/core/kv_cache_manager.py)
"""

from __future__ import annotations

from minivllm.kv.block_pool import BlockPool
from minivllm.kv.block_table import BlockTable, cdiv
from minivllm.trace import BlocksAllocated, BlocksFreed, Trace


class KVCacheManager:
    """A block table for every sequence that has blocks, all from one pool.

    Args:
        num_blocks: the pool's size, the null block included.
        block_size: positions per block.
        trace: listens to every allocation and free, if given.
    """

    def __init__(self, num_blocks: int, block_size: int, trace: Trace | None = None):
        self.block_size = block_size
        self.block_pool = BlockPool(num_blocks)
        self.block_tables: dict[str, BlockTable] = {}
        self.trace = trace

    @property
    def usage(self) -> float:
        """The share of usable blocks that somebody holds, 0 to 1."""
        pool = self.block_pool
        return 1 - pool.num_free_blocks / pool.num_usable_blocks

    def can_ever_fit(self, num_tokens: int) -> bool:
        """Would a sequence of this length fit into an empty pool?"""
        return cdiv(num_tokens, self.block_size) <= self.block_pool.num_usable_blocks

    def can_fit(self, num_tokens: int) -> bool:
        """Would a sequence of this length that holds nothing yet fit now?"""
        return cdiv(num_tokens, self.block_size) <= self.block_pool.num_free_blocks

    def allocate_slots(self, seq_id: str, num_tokens: int) -> list[int] | None:
        """Give a sequence the blocks it lacks to hold its first ``num_tokens`` positions.

        Returns:
            The ids of the new blocks (often none: the last block still has room), or None if there
            are too few free ones; then nothing has changed.
        """
        table = self.block_tables.get(seq_id)
        if table is None:
            table = BlockTable(self.block_size)
        missing = table.num_missing_blocks(num_tokens)
        if missing > self.block_pool.num_free_blocks:
            return None
        self.block_tables[seq_id] = table
        if missing == 0:
            return []
        new_blocks = self.block_pool.allocate(missing)
        table.blocks += new_blocks
        new_ids = [block.block_id for block in new_blocks]
        if self.trace is not None:
            self.trace.record(BlocksAllocated, seq_id, tuple(new_ids))
        return new_ids

    def get_block_ids(self, seq_id: str) -> list[int]:
        """The sequence's whole table, in the order of its positions."""
        return self.block_tables[seq_id].block_ids

    def free(self, seq_id: str) -> None:
        """Take all blocks back, the last one first. A sequence that holds none is no error."""
        table = self.block_tables.pop(seq_id, None)
        if table is None or not table.blocks:
            return
        if self.trace is not None:
            self.trace.record(BlocksFreed, seq_id, tuple(table.block_ids))
        self.block_pool.free(reversed(table.blocks))

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if a block is lost, counted wrongly or held by two owners."""
        self.block_pool.check_integrity(table.blocks for table in self.block_tables.values())
