"""SwapSpace: KV cache blocks in host memory, for requests that are swapped out.

(vLLM 0.6.6: the CPU half of CpuGpuBlockAllocator, vllm/core/block/cpu_gpu_block_allocator.py; V1
recomputes instead, and offloads through connectors.)
"""

from __future__ import annotations

from dataclasses import dataclass

from minivllm.kv.block import KVCacheBlock
from minivllm.kv.block_pool import BlockPool


@dataclass(frozen=True)
class KVCacheBlockSwap:
    """A block copy to or from the host, before this step's forward pass."""

    src_block_id: int
    dst_block_id: int


class SwapSpace:
    """A pool of host blocks, and the block table of each swapped sequence.

    Args:
        num_blocks: how many; 0 if nothing is ever swapped.
    """

    def __init__(self, num_blocks: int):
        self.pool: BlockPool | None = None
        if num_blocks > 0:
            self.pool = BlockPool(num_blocks + 1)  # its block 0 is unused
        self.tables: dict[str, list[KVCacheBlock]] = {}

    @property
    def num_free_blocks(self) -> int:
        return 0 if self.pool is None else self.pool.num_free_blocks

    @property
    def usage(self) -> float:
        """The share of host blocks that are not free, 0 to 1."""
        return 0.0 if self.pool is None else 1 - self.num_free_blocks / self.pool.num_usable_blocks

    def take(self, tables: dict[str, list[int]]) -> list[KVCacheBlockSwap] | None:
        """Allocate host blocks for these tables; blocks that are shared remain shared.

        Args:
            tables: device block ids by sequence.

        Returns:
            One swap per distinct block, or None if there is too little room; then nothing has
            changed.
        """
        distinct = list(dict.fromkeys(b for table in tables.values() for b in table))
        if self.pool is None or len(distinct) > self.num_free_blocks:
            return None
        home = dict(zip(distinct, self.pool.get_new_blocks(len(distinct)), strict=True))
        for seq_id, table in tables.items():
            self.tables[seq_id] = [home[block_id] for block_id in table]
            self.pool.touch(self.tables[seq_id])
        self.pool.free_blocks(home.values())  # each table has a reference of its own now
        return [KVCacheBlockSwap(src, dst.block_id) for src, dst in home.items()]

    def distinct_blocks(self, seq_ids: list[str]) -> list[KVCacheBlock]:
        """The host blocks of these sequences, each once."""
        return list(dict.fromkeys(b for seq_id in seq_ids for b in self.tables[seq_id]))

    def free(self, seq_id: str) -> None:
        """Free a sequence's host blocks, if it has any."""
        if self.pool is not None and seq_id in self.tables:
            self.pool.free_blocks(reversed(self.tables.pop(seq_id)))

    def reset(self) -> None:
        """Free all host blocks."""
        self.tables.clear()
        if self.pool is not None:
            self.pool.reset()

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` unless every host block is accounted for exactly once."""
        if self.pool is not None:
            self.pool.check_integrity(self.tables.values())
