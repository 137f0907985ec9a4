"""Elementwise operations between the products of a layer, each in a line or two of torch.

These are the definitions. A transform may put fused versions in their place, which tests hold to
them. (vLLM: vllm/_custom_ops.py)
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``x / rms(x) * weight`` over the last dimension, the mean taken in float32."""
    return F.rms_norm(x, weight.shape, weight, eps)


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """Add ``x`` to ``residual``, in place there, and return ``rms_norm`` of the sum."""
    return rms_norm(residual.add_(x), weight, eps)


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up`` of ``[num_tokens, 2 * size]``, the gate's columns before the other's."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def rotary_embedding(
    query: torch.Tensor, key: torch.Tensor, cos_sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate each pair ``(x[i], x[i + head_dim / 2])`` of ``[num_tokens, heads, head_dim]``.

    Every element is multiplied by the cosine, and gets its partner, half a head away, times the
    sine; the first of a pair has a minus there. ``cos_sin`` is ``[num_tokens, 2, head_dim]``.
    The results may be in the memory of query and key. (vLLM: rotary_embedding,
    vllm/_custom_ops.py)
    """
    cos, sin = cos_sin.unsqueeze(2).unbind(1)
    half = query.shape[-1] // 2
    query, key = (torch.addcmul(x * cos, x.roll(half, dims=-1), sin) for x in (query, key))
    return query, key
