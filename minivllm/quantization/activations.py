"""Activations in 8 bits: W8A8 and FP8 round a product's input, too, by their definition."""

from __future__ import annotations

import torch

MOST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}  # what the largest number becomes


def round_activations(
    x: torch.Tensor,
    dtype: torch.dtype,
    scale: torch.Tensor | None = None,
    zero_point: torch.Tensor | None = None,
    group_size: int = -1,
) -> torch.Tensor:
    """Numbers of 8 bits, times their scale: float32, of the same shape.

    Args:
        x: float32 ``[num_tokens, size]``.
        dtype: int8, rounded to even, or float8_e4m3fn.
        scale: a static one, from the checkpoint; None: every token has its own.
        zero_point: beside a static scale, or None for 0.
        group_size: numbers that share a scale of a token; -1: all of it.
    """
    if scale is not None:
        zero = 0.0 if zero_point is None else zero_point.float()
        return (_round(x / scale.float() + zero, dtype) - zero) * scale.float()
    groups = x.split(x.shape[-1] if group_size == -1 else group_size, -1)
    return torch.cat([_round_rows(group, dtype) for group in groups], -1)


def _round_rows(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    scale = x.abs().amax(-1, keepdim=True) / MOST[dtype]
    scale = torch.where(scale > 0, scale, 1.0)  # a row of zeros
    return _round(x / scale, dtype) * scale


def _round(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.int8:
        return x.round().clamp(-128, 127)
    return x.clamp(-MOST[dtype], MOST[dtype]).to(dtype).float()
