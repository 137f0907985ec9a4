"""HybridKVCacheManager: a block table for each KV cache group, from one pool.

Layers that keep the same tokens are a group. All groups take their blocks from one pool, which
works since a block has the same bytes whichever group holds it. Behind a sliding window a table has
the null block, and the real ones went back to the pool.
(vLLM: vllm/v1/core/kv_cache_manager.py and kv_cache_coordinator.py, with several groups)
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import replace
from math import inf
from typing import Any

from minivllm.kv.block import KVCacheBlock
from minivllm.kv.block_table import BlockIds, KVCacheBlockCopy
from minivllm.kv.groups.block_table import BlockTables, GroupBlockTable
from minivllm.kv.groups.coordinator import GroupCacheHit, KVCacheCoordinator
from minivllm.kv.groups.options import largest_hash_block_size, scheduler_block_size
from minivllm.kv.groups.prefix_cache import GroupPrefixCache
from minivllm.kv.groups.single_type import (
    FullAttentionManager,
    SingleTypeKVCacheManager,
    SlidingWindowManager,
)
from minivllm.kv.kv_cache_spec import FullAttentionSpec, KVCacheSpec
from minivllm.kv.manager import KVCacheManager
from minivllm.kv.prefix_cache import CacheHit
from minivllm.request import Sequence
from minivllm.trace import Trace, records
from minivllm.utils.math_utils import cdiv


class HybridKVCacheManager(KVCacheManager):
    """KVCacheManager with several groups of layers, some of which may have a sliding window.

    It answers the same questions. A list of block ids is here a list for each group.

    Args:
        num_blocks: the pool's size, the null block included.
        block_size: the least common multiple of the groups' block sizes: where hits may end.
        enable_prefix_caching, num_host_blocks, trace: as for ``KVCacheManager``.
        specs: of the groups, in their order.
        max_model_len: the longest sequence.
        max_in_flight_tokens: those that all plans in flight compute, at most.
        retention_interval: what a window keeps for others, see ``SlidingWindowManager``.
        hash_block_size: of the pieces in which tokens are hashed; None: the greatest common divisor
            of the groups' block sizes.
    """

    prefix_cache_cls = GroupPrefixCache
    # of your own in a subclass
    coordinator_cls = KVCacheCoordinator
    full_attention_cls = FullAttentionManager
    sliding_window_cls = SlidingWindowManager

    block_tables: dict[str, BlockTables]  # type: ignore[assignment]
    prefix_cache: GroupPrefixCache | None

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        enable_prefix_caching: bool = False,
        num_host_blocks: int = 0,
        trace: Trace | None = None,
        *,
        specs: Many[KVCacheSpec],
        max_model_len: int,
        max_in_flight_tokens: int,
        retention_interval: int | None = 0,
        hash_block_size: int | None = None,
    ):
        expected = scheduler_block_size(specs)
        assert block_size == expected, f"{block_size} != {expected}, which all groups divide"
        super().__init__(
            num_blocks,
            hash_block_size or largest_hash_block_size(specs),
            enable_prefix_caching,
            num_host_blocks=num_host_blocks,
            trace=trace,
        )
        self.block_size = block_size
        self.managers = [
            self._manager_cls(spec)(
                spec,
                alignment_tokens=block_size,
                max_blocks=spec.max_blocks(max_model_len, max_in_flight_tokens),
                null_block=self.block_pool.null_block,
                retention_interval=retention_interval,
            )
            for spec in specs
        ]
        self.coordinator = self.coordinator_cls(self.managers)

    def _manager_cls(self, spec: KVCacheSpec) -> type[SingleTypeKVCacheManager]:
        is_full = isinstance(spec, FullAttentionSpec)
        return self.full_attention_cls if is_full else self.sliding_window_cls

    def max_num_blocks(self, num_shared: int, num_tokens: int, n: int) -> int:
        """Number of blocks that ``n`` samples hold at most when each has ``num_tokens`` tokens.

        They cannot be counted on to share any: a window keeps little for others to find.
        """
        return n * self._num_blocks(num_tokens)

    def _num_blocks(self, num_tokens: int) -> int:
        """Number of blocks that a sequence of this length holds at most, over all groups."""
        return sum(min(cdiv(num_tokens, m.block_size), m.max_blocks) for m in self.managers)

    # -- hits and admission ----------------------------------------------------------------------

    def get_computed_blocks(self, seq: Sequence) -> CacheHit:
        """Cache hit: the longest prefix that is cached in all groups. Nothing changes."""
        cache = self.prefix_cache
        if cache is None or seq.skip_reading_prefix_cache:
            return GroupCacheHit(tables=[[] for _ in self.managers])
        at_most = seq.num_tokens - 1  # the logits of the last token are what is asked for
        hashes = cache.block_hashes(seq, at_most // cache.block_size)
        return self.coordinator.find_longest_cache_hit(cache, hashes, at_most)

    def get_num_blocks_to_allocate(self, seq: Sequence, hit: CacheHit) -> int:
        """Number of free blocks that a whole sequence takes, if it holds none yet.

        Of a window no more than it ever holds. Hit blocks without a reference are counted: they are
        about to leave the free queue.
        """
        return self._num_blocks_to_allocate(hit, [seq.num_tokens] * len(self.managers), capped=True)

    def _num_blocks_to_allocate(self, hit: CacheHit, num_slots: list[int], capped: bool) -> int:
        """Number of free blocks that a new sequence takes to have these slots in each group."""
        assert isinstance(hit, GroupCacheHit), "it is of this manager"
        num_blocks = 0
        for manager, found, slots in zip(self.managers, hit.tables, num_slots, strict=True):
            skipped = manager.num_skipped_blocks(hit.num_tokens)
            needed = cdiv(slots, manager.block_size)
            if capped:
                needed = min(needed, manager.max_blocks)
            num_blocks += max(0, needed - max(skipped, len(found)))
            num_blocks += sum(block.ref_cnt == 0 for block in found[skipped:])
        return num_blocks

    def can_fit_full_sequence(
        self, seq: Sequence, hit: CacheHit, num_new_tokens: int = 0, num_reserved_blocks: int = 0
    ) -> bool:
        """True if a whole sequence fits, beside the blocks reserved for its siblings.

        So must its first chunk, of which a window keeps everything until it is computed.
        """
        slots = self.slots_by_group(seq, hit.num_tokens + num_new_tokens)
        needed = max(
            self.get_num_blocks_to_allocate(seq, hit),
            self._num_blocks_to_allocate(hit, slots, capped=False),
        )
        return num_reserved_blocks + needed <= self.block_pool.num_free_blocks

    def slots_by_group(self, seq: Sequence, num_tokens: int) -> list[int]:
        """Number of slots for a sequence's tokens in each group.

        A draft model writes ahead behind the ids of full attention only.
        """
        if not self.num_lookahead_tokens:
            return [num_tokens] * len(self.managers)
        ahead = self.num_slots(seq, num_tokens)
        is_full = (isinstance(m.spec, FullAttentionSpec) for m in self.managers)
        return [ahead if full else num_tokens for full in is_full]

    def num_missing_blocks(self, seq: Sequence) -> int:
        """Number of blocks that an admitted sequence still lacks for all of its tokens."""
        missing = 0
        for manager, table in zip(self.managers, self.block_tables[seq.seq_id].tables, strict=True):
            room = manager.max_blocks - len(table.held_blocks)
            missing += max(0, min(table.num_missing_blocks(seq.num_tokens), room))
        return missing

    def allocate_new_computed_blocks(self, seq: Sequence, hit: CacheHit) -> None:
        """Make a sequence's block tables from its cache hit, whose tokens count as computed."""
        assert isinstance(hit, GroupCacheHit), "it is of this manager"
        seq.num_computed_tokens = hit.num_tokens
        tables = []
        for manager, found in zip(self.managers, hit.tables, strict=True):
            table = GroupBlockTable(manager.block_size)
            table.num_skipped = manager.num_skipped_blocks(hit.num_tokens)
            table.blocks = [self.block_pool.null_block] * table.num_skipped
            table.blocks += found[table.num_skipped :]
            table.num_cached_blocks = len(table.blocks)
            tables.append(table)
        self.block_tables[seq.seq_id] = BlockTables(tables, hit.junction)
        for group, table in enumerate(tables):
            self.block_pool.touch(table.held_blocks)
            if self.trace is not None and table.blocks:
                self.trace.record(
                    records.BlocksShared, seq.seq_id, tuple(table.block_ids), group=group
                )

    # -- a sequence that runs --------------------------------------------------------------------

    def allocate_slots(
        self, seq: Sequence, num_new_tokens: int, copies: list[KVCacheBlockCopy]
    ) -> Any:
        """Allocate the blocks that a sequence lacks to compute ``num_new_tokens`` more tokens.

        First blocks behind its windows are freed. They stay so even if there is too little room.

        Returns:
            The ids of the new blocks, a list for each group; an empty one if there is none at all.
            None if there are too few free blocks.
        """
        tables = self.block_tables[seq.seq_id]
        computed = seq.num_computed_tokens
        num_tokens = computed + num_new_tokens
        new_ids: list[list[int]] | None = []
        # 1. What no query reads any more makes room. Plans in flight still read.
        processed = computed - seq.num_in_flight_tokens
        if processed >= tables.next_skip:
            self._skip_blocks(seq, tables, processed)
        # 2. Blocks that are missing. Only forks share one that is partly filled.
        if num_tokens > tables.num_slots or seq.request.n > 1 or self.num_lookahead_tokens:
            new_ids = self._allocate_blocks(seq, tables, num_tokens, copies)
        # 3. What this step fills can be found from now on, but for drafts.
        if self.prefix_cache is not None and new_ids is not None:
            num_known = min(num_tokens, len(seq.token_ids))
            if num_known - tables.num_cached_tokens >= self.block_size:
                self.cache_blocks(seq, num_known)
        return new_ids

    def _skip_blocks(self, seq: Sequence, tables: BlockTables, num_processed_tokens: int) -> None:
        """Free the blocks that queries behind these tokens read no more."""
        next_skip = inf
        for group, (manager, table) in enumerate(zip(self.managers, tables.tables, strict=True)):
            gone = table.skip(manager.num_skipped_blocks(num_processed_tokens), self.block_pool)
            if self.trace is not None and gone:
                ids = tuple(block.block_id for block in gone)
                self.trace.record(records.BlocksSkipped, seq.seq_id, ids, group=group)
            next_skip = min(next_skip, manager.next_skip(table.num_skipped))
        tables.next_skip = next_skip

    def _allocate_blocks(
        self, seq: Sequence, tables: BlockTables, num_tokens: int, copies: list[KVCacheBlockCopy]
    ) -> list[list[int]] | None:
        """Allocate what is missing in any group for a sequence's first tokens: all or nothing."""
        slots = self.slots_by_group(seq, num_tokens)
        missing = [t.num_missing_blocks(n) for t, n in zip(tables.tables, slots, strict=True)]
        shared = [table.must_copy(seq.num_computed_tokens) for table in tables.tables]
        new_ids: list[list[int]] = []
        if any(missing) or any(shared):
            if sum(missing) + sum(shared) > self.block_pool.num_free_blocks:
                return None
            for group, table in enumerate(tables.tables):
                # a copy of a shared last block, then new blocks at the end
                if shared[group]:
                    self._copy_last_block(seq, group, table, copies)
                new_ids.append(self._append_blocks(seq, group, table, missing[group]))
        tables.num_slots = min(len(t.blocks) * t.block_size for t in tables.tables)
        return new_ids

    def _copy_last_block(
        self, seq: Sequence, group: int, table: GroupBlockTable, copies: list[KVCacheBlockCopy]
    ) -> None:
        copy = replace(table.copy_on_write(seq.seq_id, self.block_pool), group=group)
        copies.append(copy)
        if self.trace is not None:
            self.trace.record(
                records.BlockCopied,
                seq.seq_id,
                copy.src_block_id,
                dst_block_id=copy.dst_block_id,
                group=group,
            )

    def _append_blocks(
        self, seq: Sequence, group: int, table: GroupBlockTable, num_blocks: int
    ) -> list[int]:
        new_blocks = self.block_pool.get_new_blocks(num_blocks)
        table.blocks += new_blocks
        new_ids = [block.block_id for block in new_blocks]
        if self.trace is not None and new_ids:
            self.trace.record(records.BlocksAllocated, seq.seq_id, tuple(new_ids), group=group)
        return new_ids

    def cache_blocks(self, seq: Sequence, num_tokens: int) -> None:
        """Cache those blocks of a running sequence's first tokens that others should find.

        Each block is looked at once: one that was passed over stays out of the cache.
        """
        cache = self.prefix_cache
        tables = self.block_tables[seq.seq_id]
        num_aligned = num_tokens // self.block_size * self.block_size
        if cache is None or num_aligned <= tables.num_cached_tokens:
            return
        tables.num_cached_tokens = num_aligned
        pieces = cache.block_hashes(seq, num_aligned // cache.block_size)
        boundaries = (seq.num_prompt_tokens - 1, tables.junction)
        for group, (manager, table) in enumerate(zip(self.managers, tables.tables, strict=True)):
            end = num_aligned // manager.block_size
            first = max(table.num_cached_blocks, table.num_skipped)
            table.num_cached_blocks = end
            blocks = []
            hashes = []
            for index in manager.reachable_blocks(first, end, boundaries):
                block_hash = pieces[(index + 1) * manager.block_size // cache.block_size - 1]
                cache.add(table.blocks[index], cache.key(block_hash, group))
                blocks.append(table.blocks[index].block_id)
                hashes.append(block_hash)
            if self.trace is not None and blocks:
                self.trace.record(
                    records.BlocksCached, seq.seq_id, tuple(blocks), tuple(hashes), group=group
                )

    def get_block_ids(self, seq_id: str) -> Any:
        """Block ids of a sequence in each group, in the order of its positions; 0: none is kept."""
        return self.block_tables[seq_id].block_ids

    def ids_by_group(self, block_ids: Any) -> BlockIds:
        """Block ids as the plan has them, a list for each KV cache group."""
        return tuple(block_ids)

    # -- the end ---------------------------------------------------------------------------------

    def free(self, seq: Sequence, keep_host_blocks: bool = False) -> None:
        """Free all blocks of a sequence, group by group, the last of each first."""
        if not keep_host_blocks:
            self.swap_space.free(seq.seq_id)
        if seq.seq_id not in self.block_tables:
            return
        for group, table in enumerate(self.block_tables.pop(seq.seq_id).tables):
            if self.forgets_called_off and self.prefix_cache is not None:
                # cached by a step that was then called off: it must not be hit
                for block in table.blocks[seq.num_computed_tokens // table.block_size :]:
                    if block.block_hash is not None and block.ref_cnt == 1:
                        self._forget(block)
            held = table.held_blocks
            if self.trace is not None and table.blocks:
                ids = tuple(block.block_id for block in held)
                self.trace.record(records.BlocksFreed, seq.seq_id, ids, group=group)
            self.block_pool.free_blocks(reversed(held))

    def _forget(self, block: KVCacheBlock) -> None:
        assert self.prefix_cache is not None, "it can be found"
        group = self.prefix_cache.group_of(block)
        self.prefix_cache.remove(block)
        if self.trace is not None:
            self.trace.record(records.BlockForgotten, block.block_id, group=group)

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if a block is lost, counted wrongly or held by two groups."""
        tables = self.block_tables.values()
        self.block_pool.check_integrity(
            table.held_blocks for each in tables for table in each.tables
        )
        self.swap_space.check_integrity()
        assert not self.block_tables.keys() & self.swap_space.tables.keys()
        owners: dict[KVCacheBlock, int] = {}
        for seq_id, each in self.block_tables.items():
            for group, (manager, table) in enumerate(zip(self.managers, each.tables, strict=True)):
                where = f"{seq_id!r}, group {group}: {table}"
                held = table.held_blocks
                nulls = [block is self.block_pool.null_block for block in table.blocks]
                is_prefix = nulls == [True] * table.num_skipped + [False] * len(held)
                assert is_prefix, f"null blocks are not just the first {table.num_skipped}: {where}"
                is_full = isinstance(manager.spec, FullAttentionSpec)
                assert not (is_full and table.num_skipped), f"full attention keeps all: {where}"
                assert len(held) <= manager.max_blocks, f"more than {manager.max_blocks}: {where}"
                for block in held:
                    owner = owners.setdefault(block, group)
                    assert owner == group, f"{block} is group {owner}'s, too: {where}"
                    if block.block_hash is not None and self.prefix_cache is not None:
                        assert self.prefix_cache.group_of(block) == group, where
