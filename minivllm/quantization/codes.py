"""Codes of a layer: what is left of every format once its order of bits is undone.

Linear methods that multiply codes bring them into a layout of their own.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from minivllm.models.linear import Linear
from minivllm.quantization.base_config import QuantizedLinearMethod, QuantizedWeight

_NIBBLE, _BYTE = 8, 128  # zero points of symmetric codes without a sign


class Codes(NamedTuple):
    """A weight ``(q - zeros) * scales``, and the order in which it takes its inputs."""

    q: torch.Tensor  # [output_size, input_size]: uint8 for up to 4 bits, else int8
    scales: torch.Tensor  # [output_size, num_groups], of a float dtype
    zeros: torch.Tensor | None  # int8, as scales; None: 8 for 4 bits, 0 for 8 bits
    order: torch.Tensor | None  # int64 [input_size]; None: as they come


def codes_of_layer(method: QuantizedLinearMethod, layer: Linear) -> Codes | None:
    """Codes of all parts of a layer, one below the other; None if they are unlike, or no codes.

    How an input is rounded is not in them.
    """
    parts = [_codes(method.unpack(layer, part)) for part in method.parts]
    codes = _join([part for part in parts if part is not None])
    return None if codes is None or len(codes.q) < layer.output_size else codes


def _codes(weight: QuantizedWeight) -> Codes | None:
    """A weight's codes; None for floats, and for groups that end within a word."""
    q, zeros, order = weight.codes, weight.zeros, None
    if q.dtype not in (torch.uint8, torch.int8):
        return None
    num_groups = weight.scales.shape[1]
    group = q.shape[1] // num_groups
    if weight.g_idx is not None:
        counts = torch.bincount(weight.g_idx, minlength=num_groups)
        if not bool((counts == group).all()):
            return None
        order = torch.argsort(weight.g_idx, stable=True)
        q = q[:, order]
    middle = 0
    if q.dtype == torch.uint8:
        few = int(q.max()) < 2 * _NIBBLE
        middle = _NIBBLE if few else _BYTE
        if not few:
            q = (q.int() - _BYTE).to(torch.int8)
    if group % (8 if q.dtype == torch.uint8 else 4):
        return None
    if not isinstance(zeros, torch.Tensor):
        if zeros == middle:
            return Codes(q, weight.scales, None, order)
        zeros = torch.full(weight.scales.shape, zeros, device=q.device)
    zeros = zeros.int() - (_BYTE if middle == _BYTE else 0)
    if int(zeros.min()) < -128 or int(zeros.max()) > 127:
        return None
    return Codes(q, weight.scales, zeros.to(torch.int8), order)


def _join(parts: list[Codes]) -> Codes | None:
    """Parts of one layer, one below the other; None if they are unlike."""
    if not parts:
        return None
    first = parts[0]
    for other in parts[1:]:
        same_order = other.order is first.order is None
        if other.order is not None and first.order is not None:
            same_order = torch.equal(other.order, first.order)
        alike = other.q.dtype == first.q.dtype and other.scales.shape[1] == first.scales.shape[1]
        if not (same_order and alike and (other.zeros is None) == (first.zeros is None)):
            return None
    zeros = [part.zeros for part in parts if part.zeros is not None]
    return Codes(
        torch.cat([part.q for part in parts]),
        torch.cat([part.scales for part in parts]),
        torch.cat(zeros) if zeros else None,
        first.order,
    )
