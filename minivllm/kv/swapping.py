"""Swapping: the KV blocks of a preempted request, from the device to the host and back.

(vLLM 0.6.6: swap_out, can_swap_in and swap_in of vllm/core/block_manager.py; V1 recomputes instead)
"""

from __future__ import annotations

from collections.abc import Mapping

from minivllm.kv.block import KVCacheBlock
from minivllm.kv.block_table import KVCacheBlockCopy
from minivllm.kv.manager import KVCacheManager
from minivllm.kv.swap_space import KVCacheBlockSwap
from minivllm.request import Sequence
from minivllm.trace.records import SwappedIn
from minivllm.utils.math_utils import cdiv


class Swapper:
    """Moves the block tables of sequences between a KV cache and its swap space."""

    def __init__(self, kv_manager: KVCacheManager):
        self.kv_manager = kv_manager
        self.swap_space = kv_manager.swap_space

    def swap_out(
        self, seqs: list[Sequence], copies: list[KVCacheBlockCopy]
    ) -> list[KVCacheBlockSwap] | None:
        """Give sequences host blocks for what they have computed; then theirs can be freed.

        Args:
            seqs: all sequences of a request.
            copies: of this step's plan; those of these sequences will not be made, so what they
                should have got is still in their sources.

        Returns:
            What must be copied before anything else in this step, or None if the host has too
            few free blocks; then nothing has changed.
        """
        tables = {}
        source = {copy.dst_block_id: copy.src_block_id for copy in copies}
        for seq in seqs:
            ids = self._ids_to_keep(seq)
            tables[seq.seq_id] = [source.get(block_id, block_id) for block_id in ids]
        return self.swap_space.take(tables)

    def _ids_to_keep(self, seq: Sequence) -> list[int]:
        """Ids of the blocks that hold what the host is to keep of a sequence."""
        num_blocks = cdiv(seq.num_computed_tokens, self.kv_manager.block_size)
        return self.kv_manager.get_block_ids(seq.seq_id)[:num_blocks]

    def host_tables(self, seq: Sequence) -> list[list[KVCacheBlock]]:
        """The host blocks of a swapped sequence, a list for each KV cache group."""
        return [self.swap_space.tables[seq.seq_id]]

    def could_return(self, seqs: list[Sequence]) -> bool:
        """True if an empty pool could hold running sequences, as they share blocks, and go on.

        Siblings that were computed in small chunks share less than others, and computed again they
        may fit.
        """
        manager = self.kv_manager
        held = set()
        shared = set()
        missing = 0
        for seq in seqs:
            table = manager.block_tables[seq.seq_id]
            num_held = cdiv(seq.num_computed_tokens, manager.block_size)
            held.update(table.block_ids[:num_held])
            missing += max(0, cdiv(seq.num_tokens, manager.block_size) - num_held)
            if table.must_copy(seq.num_computed_tokens):
                missing += 1
                shared.add(table.block_ids[num_held - 1])
        # the last one to write into a shared block needs no copy
        return len(held) + missing - len(shared) <= manager.block_pool.num_usable_blocks

    def can_swap_in(self, seqs: list[Sequence]) -> bool:
        """True if there are free blocks for these sequences, and for each to go on."""
        grow = sum(map(self._num_to_go_on, seqs))
        coming = len(self.swap_space.distinct_blocks([seq.seq_id for seq in seqs]))
        pool = self.kv_manager.block_pool
        alone = pool.num_free_blocks == pool.num_usable_blocks
        return coming + grow <= pool.num_free_blocks or alone

    def _num_to_go_on(self, seq: Sequence) -> int:
        """Number of blocks that a swapped sequence takes beside its own to go on, and a copy."""
        manager = self.kv_manager
        num_blocks = cdiv(manager.num_slots(seq, seq.num_tokens), manager.block_size)
        return num_blocks - len(self.swap_space.tables[seq.seq_id]) + 1

    def swap_in(self, seqs: list[Sequence]) -> list[KVCacheBlockSwap]:
        """Give swapped-out sequences new blocks, shared as before. Returns the copies to make."""
        pool = self.kv_manager.block_pool
        host = self.swap_space.distinct_blocks([seq.seq_id for seq in seqs])
        home = dict(zip(host, pool.get_new_blocks(len(host)), strict=True))
        swaps = [KVCacheBlockSwap(src.block_id, dst.block_id) for src, dst in home.items()]
        for seq in seqs:
            self._make_tables(seq, home)
            self.swap_space.free(seq.seq_id)
        pool.free_blocks(home.values())  # each table has a reference of its own now
        return swaps

    def _make_tables(self, seq: Sequence, home: Mapping[KVCacheBlock, KVCacheBlock]) -> None:
        """Make the block table of a sequence that comes back; ``home`` is by host block."""
        manager = self.kv_manager
        table = manager.block_table_cls(manager.block_size)
        manager.block_tables[seq.seq_id] = table
        table.blocks = [home[block] for block in self.swap_space.tables[seq.seq_id]]
        table.num_cached_blocks = seq.num_computed_tokens // manager.block_size
        manager.block_pool.touch(table.blocks)
        if manager.trace is not None:
            manager.trace.record(SwappedIn, seq.seq_id, tuple(table.block_ids))
