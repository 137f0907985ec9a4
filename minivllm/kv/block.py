"""KVCacheBlock, and the queue of the free ones.

(vLLM: vllm/v1/core/kv_cache_utils.py)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator


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
    """Queue of free blocks, next to be used first. Linked: a cache hit removes from the middle.

    How many there are is asked all the time, so ``num_free_blocks`` is a plain number.
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
        """Remove and return the first block.

        Raises:
            ValueError: if the queue is empty.
        """
        first = self._end.next_free
        if first is self._end:
            raise ValueError("the free queue is empty.")
        self.remove(first)
        return first

    def remove(self, block: KVCacheBlock) -> None:
        """Remove a block from anywhere in the queue."""
        block.prev_free.next_free = block.next_free
        block.next_free.prev_free = block.prev_free
        block.prev_free = block.next_free = None
        self.num_free_blocks -= 1

    def append(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Append blocks at the end, in this order."""
        for block in blocks:
            self.insert(block, before=self._end)

    def prepend(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Insert blocks at the front: the first of them comes out first."""
        first = self._end.next_free
        for block in blocks:
            self.insert(block, before=first)

    def insert(self, block: KVCacheBlock, before: KVCacheBlock) -> None:
        """Insert a block before another that is in the queue, or before its end."""
        block.prev_free = before.prev_free
        block.next_free = before
        before.prev_free.next_free = block
        before.prev_free = block
        self.num_free_blocks += 1
