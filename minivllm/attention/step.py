"""StepAttention: attention of one step. A model asks it for each layer's, and knows no cache.

(vLLM: the forward context, vllm/forward_context.py, from which each layer takes its own)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from minivllm.attention.backend import AttentionBackend
from minivllm.attention.kv_cache import KVCache, LayerKVCache
from minivllm.attention.metadata import AttentionMetadata


@dataclass(slots=True)
class LayerAttention:
    """One layer's attention in a step."""

    backend: AttentionBackend
    kv_cache: LayerKVCache
    metadata: AttentionMetadata

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        sliding_window: int | None = None,
    ) -> torch.Tensor:
        """Write K and V, then attend: see ``AttentionBackend.forward``."""
        return self.backend.forward(
            query,
            key,
            value,
            kv_cache=self.kv_cache,
            metadata=self.metadata,
            scale=scale,
            sliding_window=sliding_window,
        )


@dataclass(slots=True)
class RaggedAttention:
    """Attention of encoders in a step: each row sees all rows of its sequence, and nothing is kept.

    Args:
        backend: attends.
        metadata: which rows belong to which sequence.
    """

    backend: AttentionBackend
    metadata: AttentionMetadata

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Attend: see ``AttentionBackend.attend_ragged``."""
        return self.backend.attend_ragged(query, key, value, self.metadata, scale)


@dataclass(slots=True)
class StepAttention:
    """All layers' attention in a step.

    Args:
        backend: writes and reads the cache.
        kv_cache: written at the batch's slots, read through its block tables.
        metadata: of each layer, which rows of the flat batch belong to which sequence, and where
            their K and V are; the same object for all layers of a KV cache group.
    """

    backend: AttentionBackend
    kv_cache: KVCache
    metadata: list[AttentionMetadata]

    def layer(self, index: int) -> LayerAttention:
        """Attention of a layer, with the K and V that are its own and the blocks of its group."""
        return LayerAttention(self.backend, self.kv_cache.layers[index], self.metadata[index])
