"""Paged attention in plain PyTorch: gather keys and values by the block table, then attend.

Gathering copies everything that is read, which costs as much as the attention itself; a kernel that
reads the blocks where they are (``paged_numba``, ``paged_triton``) saves that. What torch can do is
to copy little at a time, so that the copy is still in the processor's cache when it is read.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import torch
import torch.nn.functional as F

from minivllm.attention.backend import AttentionBackend
from minivllm.attention.cascade import cascade_attention, find_cascade, flash_attention
from minivllm.attention.metadata import AttentionMetadata

TILE_ROWS = 128  # rows of one sequence that attend together: bounds the mask of a long prompt
TILES_TOGETHER = 4  # tiles of like length in one call: more would fall out of the processor's cache


@dataclass(frozen=True, eq=False)
class TileBatch:
    """Tiles of as many rows each, one from a sequence, that attend in one call."""

    rows: torch.Tensor  # int64 [tiles, n]: their rows in the flat batch
    slots: torch.Tensor  # int64 [tiles, length]: where the keys they may see are
    visible: torch.Tensor | None  # bool [tiles, 1, n, length]: which row sees which key
    # (1 stands for all heads; None: row i sees the keys up to i, as in a prompt from its beginning)

    @cached_property
    def mask(self) -> torch.Tensor:
        """``visible`` as what is added to the scores, float32: made once for all layers."""
        assert self.visible is not None, "a triangle needs no mask"
        return torch.zeros(self.visible.shape).masked_fill_(~self.visible, -torch.inf)


class PagedTorch(AttentionBackend):
    """PyTorch backend: gather by the block table, then attend. Runs wherever torch does."""

    name = "paged_torch"

    def attend(self, query, key_cache, value_cache, metadata, scale, sliding_window=None):
        inputs = query, key_cache, value_cache
        if query.is_cpu and sliding_window is None:
            cascade = find_cascade(metadata, key_cache.shape[1])
            if cascade is not None:
                attend_rest = partial(self.attend_each, *inputs, scale=scale)
                return cascade_attention(cascade, *inputs, scale, attend_rest)
        return self.attend_each(*inputs, metadata, scale, sliding_window)[0]

    def attend_each(
        self, query, key_cache, value_cache, metadata, scale, sliding_window=None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Every sequence reads all that it sees. On a CPU the lse comes along; see ``cascade``."""
        block_size = key_cache.shape[1]
        output, lse = torch.empty_like(query), query.new_empty(query.shape[:2], dtype=torch.float32)
        for batch in tile_batches(metadata, block_size, sliding_window):
            # 1. Translate: slots all over the pool become one [tiles, kv_heads, length, head_dim].
            k, v = (gather(cache, batch.slots) for cache in (key_cache, value_cache))
            # 2. Attend. With grouped queries torch reads a KV head once for all heads of its group.
            q, causal = query[batch.rows].transpose(1, 2), batch.visible is None
            if query.is_cpu:
                mask = None if causal else batch.mask.to(query.dtype)
                attended, its_lse = flash_attention(q, k, v, scale, causal, mask)
                lse[batch.rows] = its_lse.transpose(1, 2)
            else:
                attended = F.scaled_dot_product_attention(
                    q, k, v, attn_mask=batch.visible, is_causal=causal, scale=scale, enable_gqa=True
                )
            output[batch.rows] = attended.transpose(1, 2)
        return output, lse


def gather(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """K or V of these slots, ``[tiles, length]``, as ``[tiles, kv_heads, length, head_dim]``."""
    rows = cache.flatten(0, 1).flatten(1).index_select(0, slots.flatten())
    return rows.view(*slots.shape, *cache.shape[2:]).transpose(1, 2)


@lru_cache(maxsize=2)  # every layer asks for the same; some models have two kinds of layers
def tile_batches(
    metadata: AttentionMetadata, block_size: int, sliding_window: int | None
) -> list[TileBatch]:
    """Cut a flat batch into tiles, and put tiles of like shape together.

    A decode is a tile of one row. A prompt that begins and ends in this step is one tile: all it
    sees is a triangle, for which torch needs no mask. Any other prompt is many, and none reads keys
    that come after its last row, so that half of the square is never computed.
    """
    tiles_of_size = defaultdict(list)
    starts = metadata.query_start_loc.tolist()
    for seq, seq_len in enumerate(metadata.seq_lens.tolist()):
        begin, end = starts[seq], starts[seq + 1]
        seen_whole = sliding_window is None or seq_len <= sliding_window
        whole = end - begin == seq_len > 1 and seen_whole
        most = seq_len if whole else TILE_ROWS
        for row in range(begin, end, most):
            size = min(most, end - row)
            tiles_of_size[size, whole].append((seq_len - (end - row), row, seq))
    batches = []
    for (size, whole), tiles in tiles_of_size.items():
        tiles.sort()  # neighbours have like lengths, so that little is padded
        for i in range(0, len(tiles), TILES_TOGETHER):
            members = torch.tensor(tiles[i : i + TILES_TOGETHER], device=metadata.seq_lens.device)
            batches.append(
                _batch(members, size, whole, metadata.block_table, block_size, sliding_window)
            )
    return batches


def _batch(tiles, size, whole, block_table, block_size, sliding_window) -> TileBatch:
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
    visible = None
    if not whole:
        visible = key_at.unsqueeze(1) <= at.unsqueeze(2)
        if sliding_window is not None:
            visible &= key_at.unsqueeze(1) > at.unsqueeze(2) - sliding_window
        visible = visible.unsqueeze(1)
    # Where a shorter tile is padded it reads its last key again: never a slot that may hold
    # garbage, since a masked NaN is still a NaN.
    key_at = torch.minimum(key_at, last)
    blocks = block_table.long()[seq.squeeze(1)].gather(1, key_at // block_size)
    return TileBatch(row + steps, blocks * block_size + key_at % block_size, visible)
