"""KVCacheManager: the block tables of all sequences, allocated from one pool for the scheduler.

(vLLM: vllm/v1/core/kv_cache_manager.py)
"""

from __future__ import annotations

from minivllm.kv.block import KVCacheBlock
from minivllm.kv.block_pool import BlockPool
from minivllm.kv.block_table import BlockIds, BlockTable, KVCacheBlockCopy
from minivllm.kv.prefix_cache import CacheHit, PrefixCache
from minivllm.kv.swap_space import SwapSpace
from minivllm.request import Sequence
from minivllm.trace import Trace, records
from minivllm.utils.math_utils import cdiv


class KVCacheManager:
    """Allocates, shares and frees the blocks of sequences; one block table each.

    Args:
        num_blocks: the pool's size, the null block included.
        block_size: positions per block.
        enable_prefix_caching: find full blocks again that hold what is about to be computed.
        num_host_blocks: blocks in host memory, for swapping.
        trace: listens to every allocation and free, if given.
    """

    block_table_cls = BlockTable  # of your own in a subclass, as is the next one
    prefix_cache_cls = PrefixCache
    forgets_called_off = True  # vLLM finds also blocks that a preempted request did not fill
    # Set by the scheduler: extra slots per sequence for a draft model's K and V, up to
    # ``max_num_slots`` in all; 0 without one.
    num_lookahead_tokens = 0
    max_num_slots = 0

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        enable_prefix_caching: bool = False,
        num_host_blocks: int = 0,
        trace: Trace | None = None,
    ):
        self.block_size = block_size
        self.prefix_cache: PrefixCache | None = None
        if enable_prefix_caching:
            self.prefix_cache = self.prefix_cache_cls(block_size)
        self.block_pool = BlockPool(num_blocks, self.prefix_cache)
        self.block_tables: dict[str, BlockTable] = {}
        self.swap_space = SwapSpace(num_host_blocks)
        self.trace = trace

    @property
    def usage(self) -> float:
        """The share of usable blocks that are not free, 0 to 1."""
        pool = self.block_pool  # plain numbers, since every step asks
        return 1 - pool.free_block_queue.num_free_blocks / (len(pool.blocks) - 1)

    def max_num_blocks(self, num_shared: int, num_tokens: int, n: int) -> int:
        """Number of blocks that ``n`` samples of a prompt hold when each has ``num_tokens`` tokens.

        They share full blocks of their first ``num_shared`` tokens. Without a prefix cache they
        cannot be counted on to do so: after a preemption each is computed by itself.
        """
        shared = 0 if self.prefix_cache is None else num_shared // self.block_size
        return shared + n * (cdiv(num_tokens, self.block_size) - shared)

    def get_computed_blocks(self, seq: Sequence) -> CacheHit:
        """Cache hit: the sequence's longest cached prefix. Nothing changes."""
        if self.prefix_cache is None or seq.skip_reading_prefix_cache:
            return CacheHit()
        blocks = self.prefix_cache.find_longest_cache_hit(seq)
        return CacheHit(blocks, len(blocks) * self.block_size)

    def get_num_blocks_to_allocate(self, seq: Sequence, hit: CacheHit) -> int:
        """Number of free blocks that a whole sequence takes, if it holds none yet.

        Hit blocks without a reference are counted: they are about to leave the free queue.
        """
        return cdiv(seq.num_tokens, self.block_size) - sum(b.ref_cnt > 0 for b in hit.blocks)

    def can_fit_full_sequence(
        self, seq: Sequence, hit: CacheHit, num_new_tokens: int = 0, num_reserved_blocks: int = 0
    ) -> bool:
        """True if a whole sequence fits, beside the blocks reserved for its siblings.

        Its first chunk must, too: with drafts, or slots for a draft model's, it can be the larger.

        Args:
            seq: holds nothing yet.
            hit: its prefix that is cached.
            num_new_tokens: of the first chunk.
            num_reserved_blocks: what its siblings have been promised.
        """
        # slots for drafts may begin a block behind the last one that the known tokens need
        num_slots = self.num_slots(seq, hit.num_tokens + num_new_tokens)
        beyond = cdiv(num_slots, self.block_size) - cdiv(seq.num_tokens, self.block_size)
        needed = self.get_num_blocks_to_allocate(seq, hit) + max(0, beyond)
        return num_reserved_blocks + needed <= self.block_pool.num_free_blocks

    def num_slots(self, seq: Sequence, num_tokens: int) -> int:
        """Number of slots for a sequence's tokens, lookahead slots of a draft model included."""
        ahead = self.num_lookahead_tokens
        if ahead and seq.request.may_draft:
            return min(num_tokens + ahead, self.max_num_slots)
        return num_tokens

    def num_missing_blocks(self, seq: Sequence) -> int:
        """Number of blocks that an admitted sequence still lacks for all of its tokens."""
        return self.block_tables[seq.seq_id].num_missing_blocks(seq.num_tokens)

    def allocate_new_computed_blocks(self, seq: Sequence, hit: CacheHit) -> None:
        """Make a sequence's block table from its cache hit, whose tokens count as computed."""
        table = self.block_table_cls(self.block_size)
        self.block_tables[seq.seq_id] = table
        seq.num_computed_tokens = hit.num_tokens
        if hit.blocks:
            self.block_pool.touch(hit.blocks)
            table.blocks += hit.blocks
            table.num_cached_blocks = len(hit.blocks)
            if self.trace is not None:
                self.trace.record(records.BlocksShared, seq.seq_id, tuple(table.block_ids))

    def allocate_slots(
        self, seq: Sequence, num_new_tokens: int, copies: list[KVCacheBlockCopy]
    ) -> list[int] | None:
        """Allocate the blocks that a sequence lacks to compute ``num_new_tokens`` more tokens.

        Blocks that will be full then can be found by others from now on: in one forward pass all K
        and V are written before any is read.

        Args:
            seq: has a table, from ``allocate_new_computed_blocks`` or ``fork``.
            num_new_tokens: to be computed, after those that are.
            copies: gets the copy that must be made first, if the last block is shared.

        Returns:
            The ids of the new blocks (often none: the last block still has room), or None if there
            are too few free ones; then nothing has changed.
        """
        # 1. What is missing? Most often nothing: the last block still has room.
        table = self.block_tables[seq.seq_id]
        computed = seq.num_computed_tokens
        num_tokens = computed + num_new_tokens
        num_slots = self.num_slots(seq, num_tokens) if self.num_lookahead_tokens else num_tokens
        missing = table.num_missing_blocks(num_slots)
        must_copy = table.must_copy(computed)
        new_ids: list[int] = []
        if missing or must_copy:
            # 2. All or nothing.
            if missing + must_copy > self.block_pool.num_free_blocks:
                return None
            # 3. A shared last block is about to be written: go on in a copy of one's own.
            if must_copy:
                copy = table.copy_on_write(seq.seq_id, self.block_pool)
                copies.append(copy)
                if self.trace is not None:
                    self.trace.record(
                        records.BlockCopied, seq.seq_id, copy.src_block_id, copy.dst_block_id
                    )
            # 4. New blocks at the end.
            if missing:
                new_blocks = self.block_pool.get_new_blocks(missing)
                table.blocks += new_blocks
                new_ids = [block.block_id for block in new_blocks]
                if self.trace is not None:
                    self.trace.record(records.BlocksAllocated, seq.seq_id, tuple(new_ids))
        # 5. Blocks that this step fills can be found from now on, but none that holds a draft, or a
        # token that is not known yet: it has no hash.
        if self.prefix_cache is not None:
            num_full = num_tokens // self.block_size
            if table.num_cached_blocks < num_full:
                num_full = min(num_full, len(seq.token_ids) // self.block_size)
            if table.num_cached_blocks < num_full:
                first = table.num_cached_blocks
                self._register(self.prefix_cache, seq, table, first, num_full)
        return new_ids

    def cache_blocks(self, seq: Sequence, num_tokens: int) -> None:
        """Cache a running sequence's blocks that are full with its first ``num_tokens`` tokens."""
        table, num_full = self.block_tables[seq.seq_id], num_tokens // self.block_size
        if self.prefix_cache is not None and table.num_cached_blocks < num_full:
            self._register(self.prefix_cache, seq, table, table.num_cached_blocks, num_full)

    def _register(
        self, cache: PrefixCache, seq: Sequence, table: BlockTable, first: int, num_full: int
    ) -> None:
        """Cache a sequence's full blocks ``first`` to ``num_full - 1``, for others to hit."""
        hashes = cache.block_hashes(seq, num_full)
        for i in range(first, num_full):
            cache.add(table.blocks[i], hashes[i])
        table.num_cached_blocks = num_full
        if self.trace is not None:
            ids = tuple(block.block_id for block in table.blocks[first:num_full])
            self.trace.record(records.BlocksCached, seq.seq_id, ids, tuple(hashes[first:num_full]))

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Fork a block table: the child shares all blocks of the parent, until one of them writes.

        Raises:
            ValueError: if the parent has no table: it is finished, or does not run yet.
        """
        if parent.seq_id not in self.block_tables:
            raise ValueError(
                f"sequence {parent.seq_id!r} ({parent.status.name}) has no blocks to share; only a "
                "running sequence can be forked."
            )
        self.block_tables[child.seq_id] = self.block_tables[parent.seq_id].fork(self.block_pool)

    def get_block_ids(self, seq_id: str) -> list[int]:
        """Block ids of a sequence, in the order of its positions."""
        return self.block_tables[seq_id].block_ids

    def ids_by_group(self, block_ids: list[int]) -> BlockIds:
        """Block ids as the plan has them, a list for each KV cache group: here there is one."""
        return (block_ids,)

    def free(self, seq: Sequence, keep_host_blocks: bool = False) -> None:
        """Free all blocks of a sequence, the last first. A sequence that holds none is no error."""
        if not keep_host_blocks:
            self.swap_space.free(seq.seq_id)
        if seq.seq_id not in self.block_tables:
            return
        table = self.block_tables.pop(seq.seq_id)
        if self.forgets_called_off and self.prefix_cache is not None:
            # cached by a step that was then called off: what was not computed must not be hit
            for block in table.blocks[seq.num_computed_tokens // self.block_size :]:
                if block.block_hash is not None and block.ref_cnt == 1:
                    self._forget(block)
        if self.trace is not None and table.blocks:
            self.trace.record(records.BlocksFreed, seq.seq_id, tuple(table.block_ids))
        self.block_pool.free_blocks(reversed(table.blocks))

    def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache. Refuses (False) while any block is in use."""
        if self.block_pool.num_free_blocks < self.block_pool.num_usable_blocks:
            return False
        for block in list(self.prefix_cache or ()):
            self._forget(block)
        return True

    def reset(self) -> None:
        """Free every block, on the device and on the host, and empty the prefix cache.

        A step has failed: which of its changes were made, and what its forward pass has written,
        is not known.
        """
        self.block_tables.clear()
        self.block_pool.reset()
        self.swap_space.reset()

    def _forget(self, block: KVCacheBlock) -> None:
        assert self.prefix_cache is not None, "it can be found"
        self.prefix_cache.remove(block)
        if self.trace is not None:
            self.trace.record(records.BlockForgotten, block.block_id)

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if a block is lost, counted wrongly or held by two owners."""
        self.block_pool.check_integrity(table.blocks for table in self.block_tables.values())
        self.swap_space.check_integrity()
        assert not self.block_tables.keys() & self.swap_space.tables.keys()
