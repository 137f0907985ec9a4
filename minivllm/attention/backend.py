"""AttentionBackend: the interface of an attention implementation over a paged KV cache.

(vLLM: AttentionImpl, vllm/v1/attention/backend.py)
(notebooks 01, 09, 19)
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import defaultdict
from dataclasses import replace

import torch
import torch.nn.functional as F

from minivllm.attention.kv_cache import KVCache, LayerKVCache
from minivllm.attention.metadata import AttentionMetadata, once_per_step
from minivllm.attention.quantized_kv import QuantizedKVCache


class AttentionBackend(ABC):
    """Writes K and V into slots, and attends to them through the block table.

    A backend keeps nothing between calls. ``attend`` is the kernel, each backend's own; the other
    methods are plain torch here, and may be overridden.
    """

    name: str
    # A CUDA graph repeats what was started when it was recorded, whatever its inputs hold by then.
    # So this is for backends whose ``attend`` decides by sizes, and never looks into a tensor.
    supports_cuda_graphs = False

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: LayerKVCache,
        metadata: AttentionMetadata,
        scale: float,
        sliding_window: int | None = None,
    ) -> torch.Tensor:
        """One layer's attention for a flat batch: write first, for all, and only then read.

        So a sequence may read what another one writes in the same step, which is what lets two
        requests that arrive together share a prefix.

        Args:
            query: ``[num_tokens, num_heads, head_dim]``.
            key, value: ``[num_tokens, num_kv_heads, head_dim]``, this step's.
            kv_cache: the layer's K and V, ``[num_blocks, block_size, num_kv_heads, head_dim]``, or
                both in 8 bits.
            metadata: which rows and which blocks belong to which sequence.
            scale: multiplies the scores, usually ``head_dim ** -0.5``.
            sliding_window: how many tokens a token sees, itself included; None: all before it.

        Returns:
            ``[num_tokens, num_heads, head_dim]``.
        """
        if isinstance(kv_cache, QuantizedKVCache):
            kv_cache.write(key, value, metadata.slot_mapping)
            output = self.attend_quantized(query, kv_cache, metadata, scale, sliding_window)
            return output if kv_cache.v_scale == 1 else output * kv_cache.v_scale
        key_cache, value_cache = kv_cache
        self.write_slots(key, value, key_cache, value_cache, metadata.slot_mapping)
        return self.attend(query, key_cache, value_cache, metadata, scale, sliding_window)

    def attend_quantized(
        self,
        query: torch.Tensor,
        kv_cache: QuantizedKVCache,
        metadata: AttentionMetadata,
        scale: float,
        sliding_window: int | None = None,
    ) -> torch.Tensor:
        """``attend`` with K and V in 8 bits; the scale of all values is still to be multiplied.

        Here the blocks that the batch reads are widened first. A kernel may do it in registers.
        """
        block_ids, narrowed = _blocks_of(metadata, kv_cache.key.shape[1], sliding_window)
        keys, values = kv_cache.widen(block_ids, query.dtype)
        scale *= kv_cache.k_scale  # one for all keys: scores are multiplied in place of keys
        return self.attend(query, keys, values, narrowed, scale, sliding_window)

    @abstractmethod
    def attend(
        self,
        query: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        metadata: AttentionMetadata,
        scale: float,
        sliding_window: int | None = None,
    ) -> torch.Tensor:
        """Causal attention of a flat batch over the paged KV cache; arguments as in ``forward``.

        Every sequence's newest tokens are its rows of ``query``; their K and V are in the cache
        already. Row ``j`` of a sequence of ``seq_len`` tokens with ``query_len`` rows stands at
        position ``i = seq_len - query_len + j`` and sees the positions ``i - sliding_window + 1``
        (or 0) to ``i``. Slots that hold no token of the sequence are never looked at: they may
        hold anything.
        """

    def attend_ragged(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        metadata: AttentionMetadata,
        scale: float,
    ) -> torch.Tensor:
        """Attention of encoders: every row sees every key of its own sequence, those behind it too.

        K and V are this step's and are not kept, so that no slot and no block is needed: of the
        metadata, ``query_start_loc`` alone is read. Shapes are those of ``forward``. (vLLM:
        AttentionType.ENCODER_ONLY)
        """
        output = torch.empty_like(query)
        for rows in rows_by_length(metadata):  # equally long sequences need no mask
            q, k, v = (x[rows].transpose(1, 2) for x in (query, key, value))
            attended = F.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=True)
            output[rows] = attended.transpose(1, 2)
        return output

    def write_slots(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Put each token's K and V, ``[num_tokens, num_kv_heads, head_dim]``, where its slot is."""
        key_cache.flatten(0, 1).index_copy_(0, slot_mapping, key)
        value_cache.flatten(0, 1).index_copy_(0, slot_mapping, value)

    def copy_blocks(self, kv_cache: KVCache, src: list[int], dst: list[int]) -> None:
        """Copy whole blocks within the device, in every layer: what copy-on-write asks for."""
        kv_cache.copy_from(kv_cache, src, dst)


@once_per_step
def rows_by_length(metadata: AttentionMetadata) -> list[torch.Tensor]:
    """Rows of equally long sequences, int64 ``[sequences, length]`` for each length."""
    starts = metadata.query_start_loc.tolist()
    begins_of = defaultdict(list)
    for begin, end in itertools.pairwise(starts):
        begins_of[end - begin].append(begin)
    device = metadata.query_start_loc.device
    return [
        torch.tensor(begins, device=device).unsqueeze(1) + torch.arange(length, device=device)
        for length, begins in begins_of.items()
    ]


@once_per_step
def _blocks_of(
    metadata: AttentionMetadata, block_size: int, sliding_window: int | None
) -> tuple[torch.Tensor, AttentionMetadata]:
    """The blocks that a batch reads, int64 ``[n]``, and its metadata with their places there.

    In place of those before a window, of which a table may still have the ids, is the null block.
    """
    table = metadata.block_table
    if sliding_window is not None:
        first_rows = metadata.seq_lens - metadata.query_start_loc.diff()
        first_blocks = (first_rows - sliding_window + 1).clamp(min=0) // block_size
        columns = torch.arange(table.shape[1], device=table.device)
        table = table.masked_fill(columns < first_blocks.unsqueeze(1), 0)
    block_ids, places = table.unique(return_inverse=True)
    return block_ids.long(), replace(metadata, block_table=places.to(torch.int32))
