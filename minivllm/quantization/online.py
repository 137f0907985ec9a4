"""Rounding to nearest while a float checkpoint is loaded: 4 bits in groups of 32, or 8 bits.

No data is needed, and any model will do: each weight becomes the nearest code of its group.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from minivllm.models.checkpoint import LinearPart
from minivllm.models.linear import Linear, LinearMethod, UnquantizedLinearMethod
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


class OnlineLinearMethod(UnquantizedLinearMethod):
    """A float weight that is quantized as soon as it is loaded."""

    def __init__(self, name: str, bits: int):
        self.name, self.bits = name, bits

    def process_weights_after_loading(self, layer: Linear) -> None:
        weight = layer.weight.detach().float()
        scheme: Scheme
        if self.bits == 8:
            scheme, tensors = Int8Scheme("channel", -1, None), round_to_int8(weight)
        else:
            group_size = math.gcd(GROUP_SIZE, layer.input_size)
            scheme = GPTQScheme(4, group_size, sym=False, v1=False)
            scheme.tensors(self.name, *reversed(weight.shape))  # whole words and groups?
            tensors = round_to_int4(weight, group_size)
        parts = {"weight": QuantizedPart(self.name, scheme, slice(0, layer.output_size))}
        del layer.weight
        layer.quant_method = method = QuantizedLinearMethod(parts, {})
        for kind, tensor in tensors.items():
            method.set_tensor(layer, "weight", kind, tensor)


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
    low, high = groups.amin(-1, keepdim=True).clamp(max=0), groups.amax(-1, keepdim=True)
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
        name = next(iter(parts))
        return None if name == "lm_head" else OnlineLinearMethod(name, self.bits)
