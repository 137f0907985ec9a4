"""AWQ (Lin et al. 2023): 4 bits, eight outputs in a word.

A word's nibbles hold columns 0, 2, 4, 6, 1, 3, 5, 7: a GPU's kernel takes two halves of a word with
one mask, and then has neighbours side by side. What made it activation-aware, scales of inputs, was
folded into the layer before: nothing of them is in the file.
(vLLM: vllm/model_executor/layers/quantization/auto_awq.py)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from minivllm.quantization.base_config import (
    QuantizationConfig,
    QuantizedWeight,
    Scheme,
    TensorSpec,
)
from minivllm.quantization.fields import Fields
from minivllm.quantization.packing import num_groups, num_words, unpack

NIBBLE_OF_COLUMN = [0, 4, 1, 5, 2, 6, 3, 7]


@dataclass(frozen=True)
class AWQScheme(Scheme):
    """A layer in 4 bits, with a scale and a zero for each group of inputs."""

    group_size: int

    output_dim = 1

    def tensors(self, name: str, input_size: int, output_size: int) -> dict[str, TensorSpec]:
        words = num_words(output_size, 4, f"the outputs of {name}")
        groups = num_groups(input_size, self.group_size, f"the inputs of {name}")
        return {
            "qweight": TensorSpec((input_size, words), torch.int32),
            "qzeros": TensorSpec((groups, words), torch.int32),
            "scales": TensorSpec((groups, output_size)),
        }

    def unpack(self, tensors: Mapping[str, torch.Tensor]) -> QuantizedWeight:
        codes = _columns(tensors["qweight"])
        zeros = _columns(tensors["qzeros"])
        return QuantizedWeight(codes.T, tensors["scales"].T, zeros.T)


def _columns(words: torch.Tensor) -> torch.Tensor:
    """``[rows, num_words]`` to uint8 ``[rows, 8 * num_words]``, columns in their order."""
    return unpack(words, 4).unflatten(-1, (-1, 8))[..., NIBBLE_OF_COLUMN].flatten(-2)


@dataclass(frozen=True)
class AWQConfig(QuantizationConfig):
    """AWQ: one scheme for all layers but those whose names contain one of some words."""

    scheme: AWQScheme
    skipped: tuple[str, ...] = ()

    name = "awq"

    @classmethod
    def from_config(cls, config: dict, source: str) -> AWQConfig:
        fields = Fields(config, source)
        fields.one_of("bits w_bit", (4,))
        fields.one_of("version", ("gemm", "GEMM"), "gemm")
        fields.one_of("zero_point", (True,), True)
        skipped = fields.strings("modules_to_not_convert")
        return cls(AWQScheme(fields.group_size("group_size q_group_size")), tuple(skipped))

    def get_scheme(self, name: str) -> Scheme | None:
        skip = name == "lm_head" or any(part in name for part in self.skipped)
        return None if skip else self.scheme
