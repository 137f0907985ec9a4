"""BlockTable: maps each position of one sequence to its slot in the KV cache (notebooks 03, 04).

Position ``p`` is in the sequence's logical block ``p // block_size``; the table says which physical
block that is; the *slot* is the row in the KV tensors (PagedAttention paper, section 4.3).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from minivllm.kv.block import KVCacheBlock
from minivllm.kv.block_pool import BlockPool
from minivllm.utils.math_utils import cdiv

BlockIds = tuple[list[int], ...]  # of a sequence's table in each KV cache group


def slots_of(block_ids: list[int], start: int, stop: int, block_size: int) -> list[int]:
    """The slots of positions ``start`` to ``stop - 1``, for a table of these block ids."""
    return [block_ids[p // block_size] * block_size + p % block_size for p in range(start, stop)]


@dataclass(frozen=True)
class KVCacheBlockCopy:
    """A block copy, before the step's forward pass: ``src``'s content to ``dst``, in all layers.

    ``dst`` takes the place of ``src`` as the last block of the sequence's table in this group.
    """

    seq_id: str
    src_block_id: int
    dst_block_id: int
    group: int = field(default=0, repr=False)  # the KV cache group whose table it is


class BlockTable:
    """The physical blocks of one sequence, in the order of its positions."""

    __slots__ = ("block_size", "blocks", "num_cached_blocks")

    def __init__(self, block_size: int):
        self.block_size = block_size
        self.blocks: list[KVCacheBlock] = []
        self.num_cached_blocks = 0  # leading blocks already entered into the prefix cache

    @property
    def block_ids(self) -> list[int]:
        return [block.block_id for block in self.blocks]

    def num_missing_blocks(self, num_tokens: int) -> int:
        """Number of blocks to add before ``num_tokens`` positions fit."""
        missing = cdiv(num_tokens, self.block_size) - len(self.blocks)
        return missing if missing > 0 else 0

    def must_copy(self, position: int) -> bool:
        """True if writing ``position`` would change a block that other tables share.

        Only the partly filled last block can be in question: full ones are never written again.
        """
        partly_filled = position % self.block_size > 0
        return partly_filled and self.blocks[position // self.block_size].ref_cnt > 1

    def copy_on_write(self, seq_id: str, pool: BlockPool) -> KVCacheBlockCopy:
        """Copy on write: replace the shared last block by a new one, to be given its content.

        Of ``k`` sequences that share a block, ``k - 1`` come through here; the last one finds that
        no other table holds it and writes in place.
        """
        src, (dst,) = self.blocks[-1], pool.get_new_blocks(1)
        self.blocks[-1] = dst
        pool.free_blocks([src])
        return KVCacheBlockCopy(seq_id, src.block_id, dst.block_id)

    def fork(self, pool: BlockPool) -> BlockTable:
        """Make a table that shares all blocks: nothing is allocated, nothing copied."""
        child = type(self)(self.block_size)
        child.blocks = list(self.blocks)
        child.num_cached_blocks = self.num_cached_blocks
        pool.touch(child.blocks)
        return child

    def slot(self, position: int) -> int:
        """The slot of ``position`` in the KV cache: ``block_id * block_size + offset``.

        Raises:
            IndexError: if no block holds that position.
        """
        logical, offset = divmod(position, self.block_size)
        if position < 0 or logical >= len(self.blocks):
            held = len(self.blocks) * self.block_size
            raise IndexError(f"position {position} is outside the {held} positions of this table.")
        return self.blocks[logical].block_id * self.block_size + offset

    def __repr__(self) -> str:
        return f"BlockTable({self.block_ids}, block_size={self.block_size})"
