"""HybridSwapper: swapping with a block table for each KV cache group.

The host keeps what the windows still reach, group after group in one list. How many of them are
whose follows from how much is computed, and so does what is null when a sequence comes back.
"""

from __future__ import annotations

from minivllm.kv.block import KVCacheBlock
from minivllm.kv.block_table import KVCacheBlockCopy
from minivllm.kv.groups.block_table import BlockTables, GroupBlockTable
from minivllm.kv.groups.manager import HybridKVCacheManager
from minivllm.kv.manager import KVCacheManager
from minivllm.kv.swap_space import KVCacheBlockSwap
from minivllm.kv.swapping import Swapper
from minivllm.request import Sequence
from minivllm.trace.records import SwappedIn
from minivllm.utils.math_utils import cdiv


def make_swapper(kv_manager: KVCacheManager) -> Swapper:
    """Make the swapper that suits a manager's tables."""
    if isinstance(kv_manager, HybridKVCacheManager):
        return HybridSwapper(kv_manager)
    return Swapper(kv_manager)


class HybridSwapper(Swapper):
    """Swapper that moves the tables of all groups."""

    kv_manager: HybridKVCacheManager

    def _ranges(self, seq: Sequence) -> list[range]:
        """Indices of the blocks of each group that hold what the next token reads."""
        computed = seq.num_computed_tokens
        return [
            range(manager.num_skipped_blocks(computed), cdiv(computed, manager.block_size))
            for manager in self.kv_manager.managers
        ]

    def _num_to_grow(self, seq: Sequence, num_slots: list[int]) -> int:
        """Number of blocks that a swapped sequence lacks to have these slots in each group."""
        lacking = 0
        for manager, held, slots in zip(
            self.kv_manager.managers, self._ranges(seq), num_slots, strict=True
        ):
            room = manager.max_blocks - len(held)
            lacking += max(0, min(cdiv(slots, manager.block_size) - held.stop, room))
        return lacking

    def host_tables(self, seq: Sequence) -> list[list[KVCacheBlock]]:
        blocks = iter(self.swap_space.tables[seq.seq_id])
        return [[next(blocks) for _ in held] for held in self._ranges(seq)]

    def swap_out(
        self, seqs: list[Sequence], copies: list[KVCacheBlockCopy]
    ) -> list[KVCacheBlockSwap] | None:
        """Give sequences host blocks for what is computed and will be read."""
        source = {copy.dst_block_id: copy.src_block_id for copy in copies}
        tables = {}
        for seq in seqs:
            ids = [
                table.blocks[index].block_id
                for table, held in zip(
                    self.kv_manager.block_tables[seq.seq_id].tables, self._ranges(seq), strict=True
                )
                for index in held
            ]
            tables[seq.seq_id] = [source.get(block_id, block_id) for block_id in ids]
        return self.swap_space.take(tables)

    def could_return(self, seqs: list[Sequence]) -> bool:
        """True if an empty pool could hold running sequences, as they share blocks, and go on."""
        manager = self.kv_manager
        held: set[KVCacheBlock] = set()
        shared: set[KVCacheBlock] = set()
        missing = 0
        for seq in seqs:
            missing += self._num_to_grow(seq, [seq.num_tokens] * len(manager.managers))
            tables = manager.block_tables[seq.seq_id].tables
            for table, indices in zip(tables, self._ranges(seq), strict=True):
                held.update(table.blocks[index] for index in indices)
                if table.must_copy(seq.num_computed_tokens):
                    missing += 1
                    shared.add(table.blocks[indices.stop - 1])
        # the last one to write into a shared block needs no copy
        return len(held) + missing - len(shared) <= manager.block_pool.num_usable_blocks

    def can_swap_in(self, seqs: list[Sequence]) -> bool:
        """True if there are free blocks for these sequences, and for each to go on."""
        manager = self.kv_manager
        pool = manager.block_pool
        coming = len(self.swap_space.distinct_blocks([seq.seq_id for seq in seqs]))
        grow = 0
        for seq in seqs:
            slots = manager.slots_by_group(seq, seq.num_tokens)
            grow += self._num_to_grow(seq, slots) + len(slots)  # and perhaps copies
        alone = pool.num_free_blocks == pool.num_usable_blocks
        return coming + grow <= pool.num_free_blocks or alone

    def swap_in(self, seqs: list[Sequence]) -> list[KVCacheBlockSwap]:
        """Give swapped-out sequences new blocks, shared as before. Returns the copies to make."""
        manager = self.kv_manager
        pool = manager.block_pool
        host = self.swap_space.distinct_blocks([seq.seq_id for seq in seqs])
        home = dict(zip(host, pool.get_new_blocks(len(host)), strict=True))
        swaps = [KVCacheBlockSwap(src.block_id, dst.block_id) for src, dst in home.items()]
        for seq in seqs:
            # none of its blocks can be found again, and none is looked at for that once more
            num_passed = seq.num_computed_tokens // manager.block_size * manager.block_size
            tables = []
            for group, blocks in enumerate(self.host_tables(seq)):
                rules = manager.managers[group]
                table = GroupBlockTable(rules.block_size)
                table.num_skipped = rules.num_skipped_blocks(seq.num_computed_tokens)
                table.blocks = [pool.null_block] * table.num_skipped
                table.blocks += [home[block] for block in blocks]
                table.num_cached_blocks = num_passed // rules.block_size
                pool.touch(table.held_blocks)
                tables.append(table)
                if manager.trace is not None:
                    ids = tuple(table.block_ids)
                    manager.trace.record(SwappedIn, seq.seq_id, ids, group=group)
            manager.block_tables[seq.seq_id] = BlockTables(tables)
            self.swap_space.free(seq.seq_id)
        pool.free_blocks(home.values())  # each table has a reference of its own now
        return swaps
