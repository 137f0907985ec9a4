"""BlockPool: all KV cache blocks, with the queue of the free ones and reference counts.

Pure bookkeeping: a block here is an id and a reference count; the tensors behind the ids live in
``attention/kv_cache.py``. (vLLM: vllm/v1/core/block_pool.py)
(notebook 08)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from minivllm.kv.block import FreeKVCacheBlockQueue, KVCacheBlock
from minivllm.kv.prefix_cache import PrefixCache


class BlockPool:
    """A fixed number of blocks, allocated from the head of the free queue.

    Block 0 is the *null block*: it is never handed out, and padding may be written to it. So of
    ``num_blocks`` blocks, ``num_blocks - 1`` are usable, and the first id given away is 1.

    Args:
        num_blocks: the pool's size, the null block included.
        prefix_cache: where full blocks can be found again; None if nothing is reused.

    Raises:
        ValueError: if there is no usable block.
    """

    def __init__(self, num_blocks: int, prefix_cache: PrefixCache | None = None):
        if num_blocks < 2:
            raise ValueError(
                f"num_blocks must be at least 2 (block 0 is the null block), got {num_blocks}."
            )
        self.blocks = [KVCacheBlock(i) for i in range(num_blocks)]
        self.null_block = self.blocks[0]
        self.prefix_cache = prefix_cache
        self.reset()

    def reset(self) -> None:
        """Make all blocks free, in the order of their ids, and empty the prefix cache."""
        if self.prefix_cache is not None:
            self.prefix_cache.reset()
        for block in self.blocks:
            block.ref_cnt, block.block_hash = 0, None
        self.free_block_queue = FreeKVCacheBlockQueue(self.blocks[1:])

    @property
    def num_usable_blocks(self) -> int:
        return len(self.blocks) - 1

    @property
    def num_free_blocks(self) -> int:
        return self.free_block_queue.num_free_blocks

    def get_new_blocks(self, n: int) -> list[KVCacheBlock]:
        """Take ``n`` blocks, each with one reference, from the head of the free queue.

        What such a block held can no longer be found from now on: eviction is lazy.

        Raises:
            ValueError: if fewer than ``n`` are free; then nothing has changed.
        """
        if n > self.num_free_blocks:
            raise ValueError(f"cannot allocate {n} blocks: {self.num_free_blocks} are free.")
        taken = [self.free_block_queue.popleft() for _ in range(n)]
        for block in taken:
            # it could be hit until now, though no table held it
            if self.prefix_cache is not None and block.block_hash is not None:
                self.prefix_cache.remove(block)
            block.ref_cnt = 1
        return taken

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Add one reference to each block; a free one leaves the queue."""
        for block in blocks:
            if block.ref_cnt == 0:
                self.free_block_queue.remove(block)
            block.ref_cnt += 1

    def free_blocks(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Drop one reference on each block; at 0 it can be handed out again.

        What can be found again goes to the *end* of the queue, in the given order: the least
        recently used is evicted first. What cannot goes to the *front*, since nothing is lost by
        using it at once.

        Raises:
            ValueError: for a block that is free already, or the null block; then nothing has
                changed.
        """
        # All is checked before anything changes.
        blocks = list(blocks)
        for block, times in Counter(blocks).items():
            if block is self.null_block:
                raise ValueError("block 0 is the null block and is never freed.")
            if block.ref_cnt < times:
                raise ValueError(f"block {block.block_id} is freed twice: nothing refers to it.")
        for block in blocks:
            block.ref_cnt -= 1
        unused = [block for block in blocks if block.ref_cnt == 0]
        self.free_block_queue.append(b for b in unused if b.block_hash is not None)
        self.free_block_queue.prepend(b for b in unused if b.block_hash is None)

    def check_integrity(self, tables: Iterable[list[KVCacheBlock]]) -> None:
        """Raise ``AssertionError`` unless every block is accounted for exactly once.

        Args:
            tables: the blocks of every block table there is.
        """
        count = [0] * len(self.blocks)
        for table in tables:
            for block in table:
                count[block.block_id] += 1
        for block in self.blocks:
            assert block.ref_cnt == count[block.block_id], (
                f"block {block.block_id} has ref_cnt {block.ref_cnt}, "
                f"but stands in block tables {count[block.block_id]} times"
            )
        # a block is free or held, never both, and only free ones are queued
        queued = [block.block_id for block in self.free_block_queue]
        assert len(queued) == self.free_block_queue.num_free_blocks, (
            f"the free queue miscounts {queued}"
        )
        assert len(queued) == len(set(queued)), f"a block is queued twice: {queued}"
        unused = {b.block_id for b in self.blocks[1:] if b.ref_cnt == 0}
        assert set(queued) == unused, f"free queue {sorted(queued)} != unused {sorted(unused)}"
        hashed = {b for b in self.blocks if b.block_hash is not None}
        found = set() if self.prefix_cache is None else set(self.prefix_cache)
        assert hashed == found, "a block carries a hash and cannot be found, or the reverse"
