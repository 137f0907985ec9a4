"""Size of K and V per token: asked by models, memory profiles, figures, exercises (notebook 13)."""

from __future__ import annotations


def kv_bytes_per_token(
    num_layers: int, num_kv_heads: int, head_dim: int, bytes_per_number: int
) -> int:
    """Bytes of K and V per token, over all layers."""
    return 2 * num_layers * num_kv_heads * head_dim * bytes_per_number
