"""Paged attention in plain PyTorch: gather keys and values by the block table, then attend.

Gathering copies everything that is read, which costs as much as the attention itself; a kernel that
reads the blocks where they are (``paged_numba``, ``paged_triton``) saves that. What torch can do is
to copy little at a time, so that the copy is still in the processor's cache when it is read.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F

from minivllm.attention.backend import AttentionBackend
from minivllm.attention.metadata import AttentionMetadata

TILE_ROWS = 128  # rows of one sequence that attend together: bounds the mask of a long prompt
TILES_TOGETHER = 4  # tiles of like length in one call: more would fall out of the processor's cache


@dataclass(frozen=True)
class TileBatch:
    """Tiles of as many rows each, one from a sequence, that attend in one call."""

    rows: torch.Tensor  # int64 [tiles, n]: their rows in the flat batch
    slots: torch.Tensor  # int64 [tiles, length]: where the keys they may see are
    visible: torch.Tensor  # bool [tiles, n, length]: which row sees which key


class PagedTorch(AttentionBackend):
    """Runs wherever torch does."""

    name = "paged_torch"

    def attend(self, query, key_cache, value_cache, metadata, scale, sliding_window=None):
        _, block_size, num_kv_heads, _ = key_cache.shape
        group = query.shape[1] // num_kv_heads
        keys, values = (cache.flatten(0, 1) for cache in (key_cache, value_cache))
        output = torch.empty_like(query)
        whole_prompts, tiles = cut_batch(metadata, block_size, sliding_window)
        for rows, slots in whole_prompts:  # a triangle, for which torch needs no mask
            k, v = (_gather(cache, slots) for cache in (keys, values))
            q = query[rows].transpose(0, 1).unsqueeze(0)
            attended = F.scaled_dot_product_attention(
                q, k, v, is_causal=True, scale=scale, enable_gqa=True
            )
            output[rows] = attended.squeeze(0).transpose(0, 1)
        for batch in tiles:
            # 1. Translate: slots all over the pool become one [tiles, kv_heads, length, head_dim].
            k, v = (_gather(cache, batch.slots) for cache in (keys, values))
            # 2. Attend. The query heads of a group read the same keys, so they stand beside each
            #    other as if they were more rows: nothing has to be repeated for them.
            q = query[batch.rows].unflatten(2, (num_kv_heads, group)).permute(0, 2, 3, 1, 4)
            mask = batch.visible.unsqueeze(1).repeat(1, 1, group, 1)
            attended = F.scaled_dot_product_attention(
                q.flatten(2, 3), k, v, attn_mask=mask, scale=scale
            )
            attended = attended.unflatten(2, (group, -1)).permute(0, 3, 1, 2, 4)
            output[batch.rows] = attended.flatten(2, 3)
        return output


def _gather(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """``[tiles, kv_heads, length, head_dim]`` from ``[slots, kv_heads, head_dim]``."""
    rows = cache.flatten(1).index_select(0, slots.flatten())
    return rows.view(*slots.shape, *cache.shape[1:]).transpose(1, 2)


@lru_cache(maxsize=2)  # every layer asks for the same; some models have two kinds of layers
def cut_batch(
    metadata: AttentionMetadata, block_size: int, sliding_window: int | None
) -> tuple[list[tuple[slice, torch.Tensor]], list[TileBatch]]:
    """Prompts that begin and end in this step (rows, and slots ``[1, length]``), and tiles.

    A decode is a tile of one row. A prompt that goes on from earlier steps, or sees only a window,
    is many tiles, and none reads keys that come after its last row. Tiles of like shape are put
    together.
    """
    whole_prompts, tiles_of_size = [], defaultdict(list)
    starts = metadata.query_start_loc.tolist()
    for seq, seq_len in enumerate(metadata.seq_lens.tolist()):
        begin, end = starts[seq], starts[seq + 1]
        if end - begin == seq_len > 1 and (sliding_window is None or seq_len <= sliding_window):
            positions = torch.arange(seq_len, device=metadata.seq_lens.device).unsqueeze(0)
            slots = _slots(metadata.block_table[seq : seq + 1], positions, block_size)
            whole_prompts.append((slice(begin, end), slots))
            continue
        for row in range(begin, end, TILE_ROWS):
            size = min(TILE_ROWS, end - row)
            tiles_of_size[size].append((seq_len - (end - row), row, seq))
    batches = []
    for size, tiles in tiles_of_size.items():
        tiles.sort()  # neighbours have like lengths, so that little is padded
        for i in range(0, len(tiles), TILES_TOGETHER):
            some = torch.tensor(tiles[i : i + TILES_TOGETHER], device=metadata.seq_lens.device)
            batches.append(_batch(some, size, metadata.block_table, block_size, sliding_window))
    return whole_prompts, batches


def _batch(tiles, size, block_table, block_size, sliding_window) -> TileBatch:
    """One batch from rows ``(position, row, sequence)`` of the tiles' first tokens."""
    first, row, seq = tiles.T.unsqueeze(2)  # each [tiles, 1]
    steps = torch.arange(size, device=tiles.device)
    at = first + steps  # [tiles, n]: the position of every row
    last = at[:, -1:]
    begin = torch.zeros_like(first)
    if sliding_window is not None:
        begin = (first - sliding_window + 1).clamp(min=0)
    length = int((last - begin).max()) + 1
    key_at = begin + torch.arange(length, device=tiles.device)  # [tiles, length]
    visible = key_at.unsqueeze(1) <= at.unsqueeze(2)
    if sliding_window is not None:
        visible &= key_at.unsqueeze(1) > at.unsqueeze(2) - sliding_window
    # Where a shorter tile is padded it reads its last key again: never a slot that may hold
    # garbage, since a masked NaN is still a NaN.
    key_at = torch.minimum(key_at, last)
    slots = _slots(block_table[seq.squeeze(1)], key_at, block_size)
    return TileBatch(row + steps, slots, visible)


def _slots(block_table: torch.Tensor, positions: torch.Tensor, block_size: int) -> torch.Tensor:
    """The slots of positions, ``[n, length]``, by the tables of their sequences."""
    blocks = block_table.long().gather(1, positions // block_size)
    return blocks * block_size + positions % block_size
