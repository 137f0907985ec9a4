"""BlockPool: all KV blocks there are, which are free, and who shares the rest.

Pure bookkeeping: a block here is an id and a reference count; the tensors behind the ids live in
``attention/kv_cache.py``. (vLLM: vllm/v1/core/block_pool.py, kv_cache_utils.py)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from minivllm.kv.prefix_cache import PrefixCache


class KVCacheBlock:
    """One physical block: room for the K and V of ``block_size`` positions, in every layer."""

    __slots__ = ("block_hash", "block_id", "next_free", "prev_free", "ref_cnt")

    def __init__(self, block_id: int):
        self.block_id = block_id
        self.ref_cnt = 0  # in how many block tables it stands
        self.block_hash: bytes | None = None  # set while it can be found in the prefix cache
        self.prev_free: KVCacheBlock | None = None  # neighbours in the free queue
        self.next_free: KVCacheBlock | None = None

    def __repr__(self) -> str:
        return f"KVCacheBlock({self.block_id}, ref_cnt={self.ref_cnt})"


class FreeKVCacheBlockQueue:
    """The free blocks, next to be used first. A linked list: a hit takes one out of the middle.

    How many there are is asked all the time, so ``num_free_blocks`` is a plain number.
    (vLLM: FreeKVCacheBlockQueue)
    """

    def __init__(self, blocks: Iterable[KVCacheBlock]):
        self._end = KVCacheBlock(-1)  # before the first and after the last
        self._end.prev_free = self._end.next_free = self._end
        self.num_free_blocks = 0
        self.append(blocks)

    def __iter__(self) -> Iterator[KVCacheBlock]:
        block = self._end.next_free
        while block is not self._end:
            yield block
            block = block.next_free

    def popleft(self) -> KVCacheBlock:
        """Take the first block out."""
        first = self._end.next_free
        self.remove(first)
        return first

    def remove(self, block: KVCacheBlock) -> None:
        """Take a block out, wherever it is."""
        block.prev_free.next_free = block.next_free
        block.next_free.prev_free = block.prev_free
        block.prev_free = block.next_free = None
        self.num_free_blocks -= 1

    def append(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Put blocks at the end, in this order."""
        for block in blocks:
            self._insert(block, before=self._end)

    def prepend(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Put blocks at the front together: the first of them comes out first."""
        first = self._end.next_free
        for block in blocks:
            self._insert(block, before=first)

    def _insert(self, block: KVCacheBlock, before: KVCacheBlock) -> None:
        block.prev_free, block.next_free = before.prev_free, before
        before.prev_free.next_free = block
        before.prev_free = block
        self.num_free_blocks += 1


class BlockPool:
    """A fixed set of blocks, handed out from the head of a queue of free ones.

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
        self.free_block_queue = FreeKVCacheBlockQueue(self.blocks[1:])
        self.prefix_cache = prefix_cache

    @property
    def num_usable_blocks(self) -> int:
        return len(self.blocks) - 1

    @property
    def num_free_blocks(self) -> int:
        return self.free_block_queue.num_free_blocks

    def get_new_blocks(self, n: int) -> list[KVCacheBlock]:
        """Take ``n`` blocks, each with one reference, from the free queue (vLLM: get_new_blocks).

        What such a block held can no longer be found from now on: eviction is lazy.

        Raises:
            ValueError: if fewer than ``n`` are free; then nothing has changed.
        """
        if n > self.num_free_blocks:
            raise ValueError(f"cannot allocate {n} blocks: {self.num_free_blocks} are free.")
        taken = [self.free_block_queue.popleft() for _ in range(n)]
        for block in taken:
            if block.block_hash is not None:
                self.prefix_cache.remove(block)
            block.ref_cnt = 1
        return taken

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Add one reference to each block; a free one leaves the queue (vLLM: touch)."""
        for block in blocks:
            if block.ref_cnt == 0:
                self.free_block_queue.remove(block)
            block.ref_cnt += 1

    def free_blocks(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Drop one reference on each block; at 0 it can be handed out again (vLLM: free_blocks).

        What can be found again goes to the *end* of the queue, in the given order: the least
        recently used is evicted first. What cannot goes to the *front*, since nothing is lost by
        using it at once.

        Raises:
            ValueError: for a block that is free already, or the null block; then nothing has
                changed.
        """
        blocks = list(blocks)
        for block, times in Counter(blocks).items():
            if block is self.null_block:
                raise ValueError("block 0 is the null block and is never freed.")
            if block.ref_cnt < times:
                raise ValueError(f"block {block.block_id} is freed twice: nobody refers to it.")
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
