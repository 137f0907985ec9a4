"""BlockPool: all KV blocks there are, which are free, and who shares the rest.

Pure bookkeeping: a block here is an id and a reference count; the tensors behind the ids live in
``attention/kv_storage.py``. (vLLM: vllm/v1/core/block_pool.py, kv_cache_utils.py)
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable


class KVCacheBlock:
    """One physical block: room for the K and V of ``block_size`` positions, in every layer."""

    __slots__ = ("block_id", "ref_cnt")

    def __init__(self, block_id: int):
        self.block_id = block_id
        self.ref_cnt = 0  # in how many block tables it stands

    def __repr__(self) -> str:
        return f"KVCacheBlock({self.block_id}, ref_cnt={self.ref_cnt})"


class BlockPool:
    """A fixed set of blocks, handed out from the head of a queue of free ones.

    Block 0 is the *null block*: it is never handed out, and padding may be written to it. So of
    ``num_blocks`` blocks, ``num_blocks - 1`` are usable, and the first id given away is 1.

    Raises:
        ValueError: if there is no usable block.
    """

    def __init__(self, num_blocks: int):
        if num_blocks < 2:
            raise ValueError(
                f"num_blocks must be at least 2 (block 0 is the null block), got {num_blocks}."
            )
        self.blocks = [KVCacheBlock(i) for i in range(num_blocks)]
        self.null_block = self.blocks[0]
        self.free_queue = deque(self.blocks[1:])

    @property
    def num_usable_blocks(self) -> int:
        return len(self.blocks) - 1

    @property
    def num_free_blocks(self) -> int:
        return len(self.free_queue)

    def allocate(self, n: int) -> list[KVCacheBlock]:
        """Take ``n`` blocks, each with one reference, from the head of the free queue.

        Raises:
            ValueError: if fewer than ``n`` are free; then nothing has changed.
        """
        if n > len(self.free_queue):
            raise ValueError(f"cannot allocate {n} blocks: {len(self.free_queue)} are free.")
        taken = [self.free_queue.popleft() for _ in range(n)]
        for block in taken:
            block.ref_cnt = 1
        return taken

    def free(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Drop one reference on each block; those that reach 0 can be handed out again.

        Their content is of no use to anyone, so they go to the *head* of the queue, together and in
        the given order: the pool reuses what is warm before it touches what is cold.

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
        self.free_queue.extendleft(b for b in reversed(blocks) if b.ref_cnt == 0)

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
        queued = [block.block_id for block in self.free_queue]
        assert len(queued) == len(set(queued)), f"a block is queued twice: {queued}"
        unused = {b.block_id for b in self.blocks[1:] if b.ref_cnt == 0}
        assert set(queued) == unused, f"free queue {sorted(queued)} != unused {sorted(unused)}"
