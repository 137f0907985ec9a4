"""HybridSwapper: swapping with a block table for each KV cache group.

The host keeps what the windows still reach, group after group in one list. How many of them are
whose follows from how much is computed, and so does what is null when a sequence comes back.
"""

from __future__ import annotations

from collections.abc import Mapping

from minivllm.kv.block import KVCacheBlock
from minivllm.kv.groups.block_table import BlockTables, GroupBlockTable
from minivllm.kv.groups.manager import HybridKVCacheManager
from minivllm.kv.manager import KVCacheManager
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

    def _ids_to_keep(self, seq: Sequence) -> list[int]:
        tables = self.kv_manager.block_tables[seq.seq_id].tables
        return [
            table.blocks[index].block_id
            for table, held in zip(tables, self._ranges(seq), strict=True)
            for index in held
        ]

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

    def _num_to_go_on(self, seq: Sequence) -> int:
        slots = self.kv_manager.slots_by_group(seq, seq.num_tokens)
        return self._num_to_grow(seq, slots) + len(slots)  # and perhaps a copy in each group

    def _make_tables(self, seq: Sequence, home: Mapping[KVCacheBlock, KVCacheBlock]) -> None:
        manager = self.kv_manager
        # none of its blocks can be found again, and none is looked at for that once more
        num_passed = seq.num_computed_tokens // manager.block_size * manager.block_size
        tables = []
        for group, blocks in enumerate(self.host_tables(seq)):
            rules = manager.managers[group]
            table = GroupBlockTable(rules.block_size)
            table.num_skipped = rules.num_skipped_blocks(seq.num_computed_tokens)
            table.blocks = [manager.block_pool.null_block] * table.num_skipped
            table.blocks += [home[block] for block in blocks]
            table.num_cached_blocks = num_passed // rules.block_size
            manager.block_pool.touch(table.held_blocks)
            tables.append(table)
            if manager.trace is not None:
                ids = tuple(table.block_ids)
                manager.trace.record(SwappedIn, seq.seq_id, ids, group=group)
        manager.block_tables[seq.seq_id] = BlockTables(tables)
