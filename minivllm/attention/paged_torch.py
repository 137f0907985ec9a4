"""Paged attention in plain PyTorch: gather keys and values by the block table, then attend.

Gathering copies everything that is read, which costs as much as the attention itself; a kernel that
reads the blocks where they are (``paged_numba``, ``paged_triton``) saves that. What torch can do is
to copy little at a time, so that the copy is still in the processor's cache when it is read.
(notebook 09)
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property, partial

import torch
import torch.nn.functional as F

from minivllm.attention.backend import AttentionBackend
from minivllm.attention.cascade import (
    attend_to_all,
    cascade_attention,
    find_cascade,
    flash_attention,
    merge_attn_states,
)
from minivllm.attention.metadata import AttentionMetadata, once_per_step

TILE_ROWS = 128  # rows of one sequence that attend together: bounds the mask of a long prompt
TILES_TOGETHER = 4  # tiles of like length in one call: more would fall out of the processor's cache
WORTH_SPLITTING = 256  # rows of a chunk from which on two calls without a mask beat those with it


@dataclass(frozen=True, eq=False)
class TileBatch:
    """A batch of tiles with equally many rows, each of one sequence, that attend in one call."""

    rows: torch.Tensor  # int64 [tiles, n]: their rows in the flat batch
    slots: torch.Tensor  # int64 [tiles, length]: where the keys they may see are
    visible: torch.Tensor | None  # bool [tiles, 1, n, length]: which row sees which key
    # (1 stands for all heads; None: no mask is needed)
    is_causal: bool = False  # row i sees the keys up to i: the new tokens of a prompt or chunk

    @property
    def is_context(self) -> bool:
        """Every row sees every key: what a chunk's sequence had computed before this step."""
        return self.visible is None and not self.is_causal

    @cached_property
    def index(self) -> slice | torch.Tensor:
        """The rows, tile after tile. Those of one tile lie side by side, so nothing is copied."""
        if len(self.rows) > 1:
            return self.rows.flatten()
        return slice(int(self.rows[0, 0]), int(self.rows[0, -1]) + 1)

    @cached_property
    def mask(self) -> torch.Tensor:
        """The additive float32 mask of ``visible``: 0 or -inf; made once for all layers."""
        assert self.visible is not None, "no mask is needed"
        return torch.zeros(self.visible.shape).masked_fill_(~self.visible, -torch.inf)


class PagedTorch(AttentionBackend):
    """PyTorch backend: gather by the block table, then attend. Runs wherever torch does."""

    name = "paged_torch"

    def attend(self, query, key_cache, value_cache, metadata, scale, sliding_window=None):
        if query.is_cpu and sliding_window is None:
            cascade = find_cascade(metadata, key_cache.shape[1])
            if cascade is not None:
                attend_rest = partial(self.attend_each, query, key_cache, value_cache, scale=scale)
                attend_to_prefix = partial(
                    self.attend_to_blocks, key_cache, value_cache, scale=scale
                )
                return cascade_attention(cascade, query, attend_rest, attend_to_prefix)
        output, _ = self.attend_each(
            query, key_cache, value_cache, metadata, scale, sliding_window=sliding_window
        )
        return output

    def attend_each(
        self, query, key_cache, value_cache, metadata, scale, sliding_window=None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attention of each sequence over all its keys. On a CPU with the lse; see ``cascade``."""
        output = torch.empty_like(query)
        lse = query.new_empty(query.shape[:2], dtype=torch.float32)
        batches = tile_batches(metadata, key_cache.shape[1], sliding_window)
        attend_tiles(
            batches, output, lse,
            query=query, key_cache=key_cache, value_cache=value_cache, scale=scale,
        )  # fmt: skip
        return output, lse

    def attend_to_blocks(
        self, key_cache, value_cache, query, block_ids, scale
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attention of all rows to all keys of these blocks, int64 ``[num_blocks]``; with lse."""
        k, v = (
            cache.index_select(0, block_ids).flatten(0, 1) for cache in (key_cache, value_cache)
        )
        return attend_to_all(query, k, v, scale)


def attend_tiles(batches, output, lse, query, key_cache, value_cache, scale: float) -> None:
    """Fill in the output of all rows of these batches, and on a CPU their lse."""
    for batch in batches:
        # 1. Translate: slots all over the pool become one [tiles, kv_heads, length, head_dim].
        k, v = (gather(cache, batch.slots) for cache in (key_cache, value_cache))
        # 2. Attend. With grouped queries torch reads a KV head once for all heads of its group.
        q = query[batch.index].unflatten(0, batch.rows.shape).transpose(1, 2)
        if query.is_cpu:
            mask = None if batch.visible is None else batch.mask.to(query.dtype)
            attended, its_lse = flash_attention(
                q, k, v, scale, is_causal=batch.is_causal, mask=mask
            )
            its_lse = its_lse.transpose(1, 2).flatten(0, 1)
        else:
            attended = F.scaled_dot_product_attention(
                q, k, v, batch.visible, is_causal=batch.is_causal, scale=scale, enable_gqa=True
            )
        attended = attended.transpose(1, 2).flatten(0, 1)
        # 3. A chunk has attended to its new tokens before, and to its context now.
        if batch.is_context:
            merge_attn_states(output, lse, batch.index, attended, its_lse)
            continue
        output[batch.index] = attended.to(output.dtype)
        if query.is_cpu:
            lse[batch.index] = its_lse


def gather(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """K or V of these slots, ``[tiles, length]``, as ``[tiles, kv_heads, length, head_dim]``."""
    rows = cache.flatten(0, 1).flatten(1).index_select(0, slots.flatten())
    return rows.view(slots.shape + cache.shape[2:]).transpose(1, 2)


@once_per_step
def tile_batches(
    metadata: AttentionMetadata, block_size: int, sliding_window: int | None
) -> list[TileBatch]:
    """Cut a flat batch into tiles, and put tiles of like shape together.

    A decode is a tile of one row. A prompt that begins in this step is one tile: all it sees is a
    triangle, for which torch needs no mask. A chunk that goes on with a prompt is two on a CPU: its
    triangle, and the context, which all its rows see, to be put together by their lse. Any other
    sequence is many, and none reads keys that come after its last row, so that half of the square
    is never computed.
    """
    # 1. Cut each sequence's rows, by the shape of the product that they make with its keys.
    tiles_of_shape = defaultdict(list)  # by rows, the triangle's part, and a context's length
    starts = metadata.query_start_loc.tolist()
    for seq, seq_len in enumerate(metadata.seq_lens.tolist()):
        begin, end = starts[seq], starts[seq + 1]
        num_rows = end - begin
        context = seq_len - num_rows
        splits = num_rows >= WORTH_SPLITTING and metadata.seq_lens.is_cpu
        windowed = sliding_window is not None and seq_len > sliding_window
        if not windowed and num_rows > 1 and (context == 0 or splits):
            tiles_of_shape[num_rows, True, 0].append((context, begin, seq))
            if context > 0:
                tiles_of_shape[num_rows, False, context].append((context, begin, seq))
            continue
        for row in range(begin, end, TILE_ROWS):
            size = min(TILE_ROWS, end - row)
            tiles_of_shape[size, False, 0].append((seq_len - (end - row), row, seq))
    # 2. Put a few tiles of like shape together.
    batches = []
    for (size, causal, context), tiles in tiles_of_shape.items():
        tiles.sort()  # neighbours have like lengths, so that little is padded
        for i in range(0, len(tiles), TILES_TOGETHER):
            members = torch.tensor(tiles[i : i + TILES_TOGETHER], device=metadata.seq_lens.device)
            batches.append(
                _batch(
                    members,
                    size,
                    causal=causal,
                    context=context,
                    block_table=metadata.block_table,
                    block_size=block_size,
                    sliding_window=sliding_window,
                )
            )
    return sorted(batches, key=lambda batch: batch.is_context)


def _batch(tiles, size, causal, context, block_table, block_size, sliding_window) -> TileBatch:
    """One batch from rows ``(position, row, sequence)`` of the tiles' first tokens."""
    first, row, seq = tiles.T.unsqueeze(2)  # each [tiles, 1]
    steps = torch.arange(size, device=tiles.device)
    at = first + steps  # [tiles, n]: the position of every row
    last = at[:, -1:]
    begin = first if causal else torch.zeros_like(first)
    if sliding_window is not None and not causal:
        begin = (first - sliding_window + 1).clamp(min=0)
    length = context or int((last - begin).max()) + 1
    key_at = begin + torch.arange(length, device=tiles.device)  # [tiles, length]
    visible = None
    if not causal and not context:
        visible = key_at.unsqueeze(1) <= at.unsqueeze(2)
        if sliding_window is not None:
            visible &= key_at.unsqueeze(1) > at.unsqueeze(2) - sliding_window
        visible = visible.unsqueeze(1)
    # Where a shorter tile is padded it reads its last key again: never a slot that may hold
    # garbage, since a masked NaN is still a NaN.
    key_at = torch.minimum(key_at, last)
    blocks = block_table.long()[seq.squeeze(1)].gather(1, key_at // block_size)
    return TileBatch(row + steps, blocks * block_size + key_at % block_size, visible, causal)
