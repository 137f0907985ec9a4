"""Rounding to nearest: each group of a weight's row gets a scale and a zero point of its own."""

from __future__ import annotations

from typing import NamedTuple

import torch


class QuantizedWeight(NamedTuple):
    """A weight as small integers: ``w = (q - zero) * scale``, by row and group of columns."""

    q: torch.Tensor  # uint8 [out, in]
    scales: torch.Tensor  # float16 [out, groups]
    zeros: torch.Tensor  # uint8 [out, groups]

    def dequantize(self) -> torch.Tensor:
        """The weight that these integers stand for, float32 ``[out, in]``."""
        group = self.q.shape[1] // self.scales.shape[1]
        zeros = self.zeros.repeat_interleave(group, 1).float()
        return (self.q.float() - zeros) * self.scales.float().repeat_interleave(group, 1)


def find_scale_and_zero(
    group: torch.Tensor, bits: int, sym: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale and zero point of each row of a group, float32 ``[out, 1]``.

    Symmetric: the zero point is the middle, and the largest magnitude reaches the end. Otherwise
    the range from the smallest number to the largest is used; 0 is always in it. Scales are numbers
    that float16 has, as a checkpoint keeps them.
    """
    most = 2**bits - 1
    low, high = group.amin(1, keepdim=True).clamp(max=0), group.amax(1, keepdim=True).clamp(min=0)
    if sym:
        high = torch.maximum(-low, high)
        low = -high
    scale = ((high - low) / most).clamp(min=2.0**-14).half().float()
    middle = torch.full_like(scale, 2 ** (bits - 1))
    return scale, middle if sym else (-low / scale).round().clamp(0, most)


def round_to_grid(
    values: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, bits: int
) -> torch.Tensor:
    """The nearest integer of the grid for each value, as float32."""
    return (values / scale + zero).round().clamp(0, 2**bits - 1)


def round_to_nearest(weight: torch.Tensor, bits: int, group: int, sym: bool) -> QuantizedWeight:
    """Round each number of a weight ``[out, in]`` to the nearest of its group's grid."""
    parts = []
    for columns in weight.float().split(group, 1):
        scale, zero = find_scale_and_zero(columns, bits, sym)
        parts.append((round_to_grid(columns, scale, zero, bits=bits), scale, zero))
    q, scales, zeros = (torch.cat(part, 1) for part in zip(*parts, strict=True))
    return QuantizedWeight(q.to(torch.uint8), scales.half(), zeros.to(torch.uint8))
