"""FP8: weights in float8 (e4m3), with a scale for the tensor, for an output or for a block.

(vLLM: vllm/model_executor/layers/quantization/fp8.py)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from minivllm.quantization.activations import round_activations
from minivllm.quantization.base_config import (
    QuantizationConfig,
    QuantizedWeight,
    Scheme,
    TensorSpec,
)
from minivllm.quantization.fields import Fields

E4M3 = torch.float8_e4m3fn


@dataclass(frozen=True)
class FP8Scheme(Scheme):
    """A layer in float8. Its input is rounded, too, unless ``activations`` is None."""

    strategy: str  # "tensor", "channel" (an output), "block"
    activations: str | None  # "static", "dynamic"
    block: tuple[int, int] = (128, 128)  # outputs and inputs of a block
    scale_name: str = "weight_scale"

    @property
    def output_step(self) -> int:
        return self.block[0] if self.strategy == "block" else super().output_step

    def tensors(self, name: str, input_size: int, output_size: int) -> dict[str, TensorSpec]:
        blocks = -(-output_size // self.block[0]), -(-input_size // self.block[1])
        scales = {"tensor": (1,), "channel": (output_size, 1), "block": blocks}
        specs = {
            "weight": TensorSpec((output_size, input_size), E4M3),
            self.scale_name: TensorSpec(scales[self.strategy]),
        }
        if self.activations == "static":
            specs["input_scale"] = TensorSpec((1,))
        return specs

    def unpack(self, tensors: Mapping[str, torch.Tensor]) -> QuantizedWeight:
        weight = tensors["weight"]
        scales = tensors[self.scale_name]
        if self.strategy == "block":
            rows = scales.repeat_interleave(self.block[0], 0)[: len(weight)]
            inputs = torch.arange(weight.shape[1], device=weight.device)
            return QuantizedWeight(weight, rows, g_idx=inputs // self.block[1])
        return QuantizedWeight(weight, scales.reshape(-1, 1).expand(len(weight), 1))

    def round_input(self, x: torch.Tensor, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        if self.activations is None:
            return x
        group_size = self.block[1] if self.strategy == "block" else -1
        return round_activations(x, E4M3, tensors.get("input_scale"), group_size=group_size)


@dataclass(frozen=True)
class FP8Config(QuantizationConfig):
    """FP8 as many models are published: ``quant_method`` "fp8"."""

    scheme: FP8Scheme
    skipped: tuple[str, ...] = ()  # whole names, or their ends

    name = "fp8"

    @classmethod
    def from_config(cls, config: dict, source: str) -> FP8Config:
        fields = Fields(config, source)
        activations = fields.one_of("activation_scheme", ("dynamic", "static"), "dynamic")
        skipped = tuple(fields.strings("ignored_layers modules_to_not_convert"))
        if config.get("weight_block_size") is None:
            return cls(FP8Scheme("tensor", activations), skipped)
        fields.one_of("activation_scheme", ("dynamic",), "dynamic")
        block = fields.block("weight_block_size")
        scheme = FP8Scheme("block", activations, block=block, scale_name="weight_scale_inv")
        return cls(scheme, skipped)

    def get_scheme(self, name: str) -> Scheme | None:
        skip = any(f".{name}".endswith(f".{skipped}") for skipped in (*self.skipped, "lm_head"))
        return None if skip else self.scheme
