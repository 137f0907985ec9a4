"""Unpacked quantized weights: integer codes and scales, the same for all formats.

Linear methods that multiply codes bring them into a layout of their own.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from minivllm.models.linear import Linear
from minivllm.quantization.base_config import SCALES, QuantizedLinearMethod, QuantizedWeight

_NIBBLE = 8  # zero points of symmetric codes without a sign
_BYTE = 128


class Codes(NamedTuple):
    """A weight ``(q - zeros) * scales``, or ``q * scales + mins``, and the order of its inputs."""

    # [output_size, input_size]: uint8 for up to 4 bits, int8 or e4m3 for more; or wider floats,
    # whose scale is 1
    q: torch.Tensor
    scales: torch.Tensor  # [output_size, num_groups], of a float dtype
    zeros: torch.Tensor | None  # int8, as scales; None: 8 for 4 bits, 0 for 8 bits or with mins
    order: torch.Tensor | None  # int64 [input_size]; None: as they come
    mins: torch.Tensor | None = None  # of a float dtype, as scales


def codes_of_parts(method: QuantizedLinearMethod, layer: Linear) -> list[Codes] | None:
    """Codes of a layer's parts, one after the other; None if some have none.

    Neighbours that are alike are one. How an input is rounded is not in them.
    """
    joined: list[Codes] = []
    for part in method.parts:
        codes = _codes(method.unpack(layer, part))
        if codes is None:
            return None
        if joined and _are_alike(joined[-1], codes):
            joined[-1] = _join(joined[-1], codes)
        else:
            joined.append(codes)
    return joined


def codes_of_layer(method: QuantizedLinearMethod, layer: Linear) -> Codes | None:
    """Codes of all parts of a layer, one below the other; None if they are unlike, or no codes."""
    codes = codes_of_parts(method, layer)
    return codes[0] if codes is not None and len(codes) == 1 else None


def _codes(weight: QuantizedWeight) -> Codes | None:
    """A weight's codes; None for groups that are unlike, or that end within a word."""
    q = weight.codes
    zeros = weight.zeros
    order = None
    if q.dtype in SCALES:
        return Codes(q, weight.scales, zeros=None, order=None)
    if q.dtype not in (torch.uint8, torch.int8, torch.float8_e4m3fn):
        return None
    # 1. Groups of equal size, side by side: a kernel steps through the inputs.
    num_groups = weight.scales.shape[1]
    group = q.shape[1] // num_groups
    if weight.g_idx is not None:
        counts = torch.bincount(weight.g_idx, minlength=num_groups)
        if not bool((counts == group).all()):
            return None
        if bool((weight.g_idx.diff() < 0).any()):
            order = torch.argsort(weight.g_idx, stable=True)
            q = q.view(torch.uint8)[:, order].view(q.dtype)
    # 2. Codes in as few bits as hold them; unsigned bytes become signed, so zeros move, too.
    middle = 0
    if q.dtype == torch.uint8:
        few = int(q.max()) < 2 * _NIBBLE
        middle = _NIBBLE if few else _BYTE
        if not few:
            q = (q.int() - _BYTE).to(torch.int8)
    # 3. A word of a panel has 8 or 4 codes, and all of one group.
    if group % (8 if q.dtype == torch.uint8 else 4):
        return None
    if weight.mins is not None:
        return Codes(q, weight.scales, zeros=None, order=order, mins=weight.mins)
    # 4. The usual zero goes without saying; others must fit a signed byte.
    if not isinstance(zeros, torch.Tensor):
        if zeros == middle:
            return Codes(q, weight.scales, zeros=None, order=order)
        zeros = torch.full(weight.scales.shape, zeros, device=q.device)
    zeros = zeros.int() - (_BYTE if middle == _BYTE else 0)
    if int(zeros.min()) < -128 or int(zeros.max()) > 127:
        return None
    return Codes(q, weight.scales, zeros=zeros.to(torch.int8), order=order)


def _are_alike(codes: Codes, other: Codes) -> bool:
    """True if both can be rows of one weight."""
    same_order = codes.order is other.order is None
    if codes.order is not None and other.order is not None:
        same_order = torch.equal(codes.order, other.order)
    return (
        same_order
        and codes.q.dtype == other.q.dtype
        and codes.scales.shape[1] == other.scales.shape[1]
        and (codes.zeros is None) == (other.zeros is None)
        and (codes.mins is None) == (other.mins is None)
    )


def _join(codes: Codes, other: Codes) -> Codes:
    """One below the other."""

    def both(first: torch.Tensor | None, second: torch.Tensor | None) -> torch.Tensor | None:
        return None if first is None or second is None else torch.cat((first, second))

    return Codes(
        q=torch.cat((codes.q, other.q)),
        scales=torch.cat((codes.scales, other.scales)),
        zeros=both(codes.zeros, other.zeros),
        order=codes.order,
        mins=both(codes.mins, other.mins),
    )
