"""Rounding to nearest while a float checkpoint is loaded: 4 bits in groups of 32, or 8 bits.

No data is needed, and any model will do: each weight becomes the nearest code of its group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from minivllm.models.checkpoint import LinearPart
from minivllm.models.linear import Linear, LinearMethod
from minivllm.quantization.base_config import (
    QuantizationConfig,
    QuantizedLinearMethod,
    QuantizedPart,
    Scheme,
)
from minivllm.quantization.compressed_tensors import Int8Scheme
from minivllm.quantization.gptq import GPTQScheme
from minivllm.quantization.packing import pack

GROUP_SIZE = 32


class OnlineLinearMethod(QuantizedLinearMethod):
    """Floats in the checkpoint, codes in memory: the whole model is never there in floats."""

    def part_tensors(self, layer: Linear, part: str, rows: slice) -> dict[str, Any]:
        tensors = super().part_tensors(layer, part, rows)
        scheme = self.parts[part].scheme
        bias = {"bias": tensors.pop("bias")} if "bias" in tensors else {}

        def write(weight: torch.Tensor) -> None:
            for kind, rounded in round_to_nearest(weight.float(), scheme).items():
                tensors[kind].copy_(rounded)

        like = torch.empty(rows.stop - rows.start, layer.input_size, device="meta")
        return {"weight": RoundedWeight(like, write)} | bias


class RoundedWeight:
    """A float weight's place in a layer: what is copied there is written as codes and scales."""

    def __init__(self, like: torch.Tensor, write: Callable[[torch.Tensor], None]):
        self.like = like
        self.copy_ = write

    def __getattr__(self, name: str) -> Any:
        return getattr(self.like, name)  # shape, dtype

    @property
    def T(self) -> RoundedWeight:
        """The place of a weight that a checkpoint has transposed."""
        return RoundedWeight(self.like.T, lambda weight: self.copy_(weight.T))


def round_to_nearest(weight: torch.Tensor, scheme: Scheme) -> dict[str, torch.Tensor]:
    """A scheme's tensors, from float32 ``[outputs, inputs]``."""
    if isinstance(scheme, GPTQScheme):
        return round_to_int4(weight, scheme.group_size)
    return round_to_int8(weight)


def round_to_int8(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """Tensors of ``Int8Scheme``, a scale for each output, from float32 ``[outputs, inputs]``."""
    scales = _scales(weight.abs().amax(1, keepdim=True) / 127)
    codes = (weight / scales.float()).round().clamp(-127, 127)
    return {"weight": codes.to(torch.int8), "weight_scale": scales}


def round_to_int4(weight: torch.Tensor, group_size: int) -> dict[str, torch.Tensor]:
    """Tensors of ``GPTQScheme``, v2 and asymmetric, from float32 ``[outputs, inputs]``.

    A group's 16 codes are spread from its least weight to its largest, and one of them is 0.
    """
    groups = weight.unflatten(1, (-1, group_size))
    low = groups.amin(-1, keepdim=True).clamp(max=0)
    high = groups.amax(-1, keepdim=True)
    scales = _scales((high.clamp(min=0) - low) / 15)
    zeros = (-low / scales.float()).round().clamp(0, 15)
    codes = ((groups / scales.float()).round() + zeros).clamp(0, 15)
    return {
        "qweight": pack(codes.flatten(1), 4).T.contiguous(),
        "qzeros": pack(zeros.squeeze(-1).T, 4).contiguous(),
        "scales": scales.squeeze(-1).T.contiguous(),
    }


def _scales(scales: torch.Tensor) -> torch.Tensor:
    """Scales in 16 bits, where there is a difference to scale."""
    halves = scales.half()
    return torch.where(halves > 0, halves, 1.0)


@dataclass(frozen=True)
class OnlineConfig(QuantizationConfig):
    """All linear layers but the head, in this many bits."""

    name: str
    bits: int

    @classmethod
    def from_config(cls, config: dict, source: str) -> OnlineConfig:
        raise ValueError(f"{source} describes no weights that are quantized at loading.")

    def get_scheme(self, name: str) -> Scheme | None:
        return None

    def get_quant_method(
        self,
        layer: Linear,
        parts: Mapping[str, LinearPart],
        stored: Mapping[str, torch.Tensor],
    ) -> LinearMethod | None:
        if "lm_head" in parts:
            return None
        scheme: Scheme = Int8Scheme("channel", -1, None)
        if self.bits == 4:
            group_size = math.gcd(GROUP_SIZE, layer.input_size)
            scheme = GPTQScheme(4, group_size, sym=False, v1=False)
        rounded = {p.part: QuantizedPart(name, scheme, p.rows) for name, p in parts.items()}
        return OnlineLinearMethod(rounded, {})
