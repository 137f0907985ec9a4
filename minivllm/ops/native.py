"""Elementwise operations in torch: the reference. Arguments as in ``minivllm.ops``."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    return rms_norm(residual.add_(x), weight, eps)


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def rotary_embedding(
    query: torch.Tensor, key: torch.Tensor, cos_sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    cos, sin = cos_sin.unsqueeze(2).unbind(1)
    half = query.shape[-1] // 2
    query, key = (torch.addcmul(x * cos, x.roll(half, dims=-1), sin) for x in (query, key))
    return query, key


def merge_attn_states(
    output: torch.Tensor,
    lse: torch.Tensor,
    rows: torch.Tensor | slice,
    other: torch.Tensor,
    other_lse: torch.Tensor,
) -> None:
    its_lse = lse[rows]
    # e^a / (e^a + e^b), the other part's share of the weight, is the sigmoid of a - b
    share = torch.sigmoid(other_lse - its_lse).unsqueeze(-1)
    output[rows] = torch.lerp(output[rows].float(), other.float(), share).to(output.dtype)
    lse[rows] = torch.logaddexp(its_lse, other_lse)
