"""Layers of a GGUF file in the file's blocks, as one more format of quantized weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from minivllm.models.checkpoint import LinearPart
from minivllm.models.linear import Linear, LinearMethod
from minivllm.quantization.base_config import (
    QuantizationConfig,
    QuantizedLinearMethod,
    QuantizedPart,
    QuantizedWeight,
    Scheme,
    TensorSpec,
)
from minivllm.quantization.gguf.reader import GGUFReader
from minivllm.quantization.gguf.types import BlockType
from minivllm.quantization.gguf.weights import gguf_name


@dataclass(frozen=True)
class GGUFScheme(Scheme):
    """Rows of blocks of one type."""

    type: BlockType

    def tensors(self, name: str, input_size: int, output_size: int) -> dict[str, TensorSpec]:
        num_bytes = input_size // self.type.block_size * self.type.block_bytes
        return {"qweight": TensorSpec((output_size, num_bytes), torch.uint8)}

    def unpack(self, tensors: Mapping[str, torch.Tensor]) -> QuantizedWeight:
        rows = tensors["qweight"]
        blocks = self.type.unpack(rows.reshape(-1, self.type.block_bytes))
        codes, scales = (t.reshape(len(rows), -1) for t in (blocks.codes, blocks.scales))
        mins = None if blocks.mins is None else blocks.mins.reshape(len(rows), -1)
        return blocks._replace(codes=codes, scales=scales, mins=mins)


@dataclass(frozen=True)
class GGUFConfig(QuantizationConfig):
    """The type of each tensor, by its name in the file."""

    types: dict[str, BlockType]

    name = "gguf"

    @classmethod
    def from_config(cls, config: dict, source: str) -> GGUFConfig:
        raise ValueError(f"{source} describes no GGUF file, which has its own description.")

    @classmethod
    def from_file(cls, path: str | Path) -> GGUFConfig:
        """Read a file's types.

        Raises:
            ValueError: if it is broken.
        """
        return cls({name: info.type for name, info in GGUFReader(path).tensors.items()})

    def get_scheme(self, name: str) -> Scheme | None:
        found = self.types.get(gguf_name(f"{name}.weight"))
        return None if found is None or found.block_size == 1 else GGUFScheme(found)

    def get_quant_method(
        self,
        layer: Linear,
        parts: Mapping[str, LinearPart],
        stored: Mapping[str, torch.Tensor],
    ) -> LinearMethod | None:
        return super().get_quant_method(layer, parts, self._floats(parts))

    def get_embedding_method(
        self, parts: Mapping[str, LinearPart], stored: Mapping[str, torch.Tensor]
    ) -> LinearMethod | None:
        ((name, part),) = parts.items()
        if (scheme := self.get_scheme(name)) is None:
            return super().get_embedding_method(parts, self._floats(parts))
        return QuantizedLinearMethod({part.part: QuantizedPart(name, scheme, part.rows)}, {})

    def _floats(self, names: Mapping[str, LinearPart]) -> dict[str, torch.Tensor]:
        """Tensors like those in the file that are floats, without memory."""
        types = {f"{name}.weight": self.types.get(gguf_name(f"{name}.weight")) for name in names}
        return {
            name: found.unpack(torch.empty(0, found.block_bytes, dtype=torch.uint8)).codes
            for name, found in types.items()
            if found is not None and found.block_size == 1
        }
