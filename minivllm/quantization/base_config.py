"""Quantized linear layers: what a format must say of itself, and the product that all share.

A weight is kept as its checkpoint has it, a few bits a number, and is only widened for a product:
``(code - zero) * scale``, where a group of neighbouring inputs of one output has a scale and a
zero. (vLLM: vllm/model_executor/layers/quantization/base_config.py)
(notebook 18b)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from minivllm.models.checkpoint import LinearPart
from minivllm.models.linear import EmbeddingMethod, Linear, LinearMethod
from minivllm.models.product import returns_product


class TensorSpec(NamedTuple):
    """One tensor of a quantized layer in a checkpoint."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None = None  # None: scales, in the floats that the file has
    optional: bool = False  # a file may lack it


class QuantizedWeight(NamedTuple):
    """A weight taken apart: its definition, whatever the file's order of bits is."""

    codes: torch.Tensor  # [output_size, input_size], of 8 bits
    scales: torch.Tensor  # [output_size, num_groups]
    zeros: torch.Tensor | int = 0  # [output_size, num_groups], or one for all
    g_idx: torch.Tensor | None = None  # [input_size]: group of each input; None: one by one
    mins: torch.Tensor | None = None  # [output_size, num_groups]: floats to add

    def dequantize(self) -> torch.Tensor:
        """Float32 ``[output_size, input_size]``, exact: codes have few bits, scales at most 24."""
        inputs = self.codes.shape[1]
        groups = self.g_idx
        if groups is None:
            groups = torch.arange(inputs, device=self.codes.device)
            groups = groups // (inputs // self.scales.shape[1])
        zeros = self.zeros
        if isinstance(zeros, torch.Tensor):
            zeros = zeros[:, groups]
        numbers = (self.codes.float() - zeros) * self.scales.float()[:, groups]
        return numbers if self.mins is None else numbers + self.mins.float()[:, groups]


class Scheme(ABC):
    """Tensors of one quantized layer, and their meaning. A fused layer has one for each part."""

    output_dim = 0  # the dimension of the tensors that outputs run along, where there are two

    @property
    def output_step(self) -> int:
        """Outputs that share a word or a scale: multiples of these can be told apart."""
        return 32

    @abstractmethod
    def tensors(self, name: str, input_size: int, output_size: int) -> dict[str, TensorSpec]:
        """The last names of the tensors of layer ``name``, and their shapes.

        Raises:
            ValueError: if the layer's sizes do not fit the groups or words.
        """

    @abstractmethod
    def unpack(self, tensors: Mapping[str, torch.Tensor]) -> QuantizedWeight:
        """Take the weight apart."""

    def narrow(
        self, tensors: Mapping[str, torch.Tensor], begin: int, end: int, output_size: int
    ) -> dict[str, torch.Tensor]:
        """The same tensors of some outputs alone; ``begin`` is a multiple of ``output_step``."""

        def part(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.dim() < 2:  # it is about all outputs
                return tensor
            size = tensor.shape[self.output_dim]  # fewer than outputs, if they share a word
            first = begin * size // output_size
            last = end * size // output_size
            return tensor.narrow(self.output_dim, first, last - first)

        return {kind: part(tensor) for kind, tensor in tensors.items()}

    def check(self, name: str, tensors: Mapping[str, torch.Tensor]) -> set[str]:
        """Look at loaded numbers. Returns the tensors that are not needed any more.

        Raises:
            ValueError: for numbers that cannot be right, naming the tensor.
        """
        return set()

    def round_input(self, x: torch.Tensor, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Activations as the format multiplies them, float32; by default as they are."""
        return x


class FloatScheme(Scheme):
    """A plain weight, in the floats that the file has: a part that was left out."""

    def tensors(self, name: str, input_size: int, output_size: int) -> dict[str, TensorSpec]:
        return {"weight": TensorSpec((output_size, input_size))}

    def unpack(self, tensors: Mapping[str, torch.Tensor]) -> QuantizedWeight:
        weight = tensors["weight"]
        return QuantizedWeight(weight, weight.new_ones(len(weight), 1))


class QuantizedPart(NamedTuple):
    """A layer of the checkpoint, and how it is quantized."""

    name: str  # the checkpoint's
    scheme: Scheme
    rows: slice  # of the layer's outputs


class QuantizedLinearMethod(EmbeddingMethod):
    """Quantized weights of a layer's parts, dequantized for every product: the definition.

    A product takes some outputs at a time, so that few numbers of the weight are ever floats.

    Args:
        parts: by the names that ``LinearPart.part`` has.
        stored: the checkpoint's tensors, of which shapes and dtypes count; a scale is kept in its
            dtype (float16 if there is none), an optional tensor only if it is there.
    """

    def __init__(self, parts: dict[str, QuantizedPart], stored: Mapping[str, torch.Tensor]):
        self.parts = parts
        self._stored = stored

    def create_weights(self, layer: Linear) -> None:
        for part, (name, scheme, rows) in self.parts.items():
            output_size = rows.stop - rows.start
            for kind, spec in scheme.tensors(name, layer.input_size, output_size).items():
                found = self._stored.get(f"{name}.{kind}")
                if found is None and spec.optional:
                    continue
                given = torch.float16 if found is None else found.dtype
                dtype = spec.dtype or (given if given in SCALES else torch.float16)
                self.set_tensor(layer, part, kind, torch.empty(spec.shape, dtype=dtype))
        self._stored = {}

    @staticmethod
    def set_tensor(layer: Linear, part: str, kind: str, tensor: torch.Tensor) -> None:
        """Make a tensor a parameter of the layer."""
        layer.register_parameter(f"{part}_{kind}", nn.Parameter(tensor, requires_grad=False))

    def packed_tensors(self, layer: Linear, part: str) -> dict[str, torch.Tensor]:
        """A part's tensors, by their last names in a checkpoint."""
        named = layer.named_parameters(recurse=False)
        begin = f"{part}_"
        return {name.removeprefix(begin): p for name, p in named if name.startswith(begin)}

    def part_tensors(self, layer: Linear, part: str, rows: slice) -> dict[str, torch.Tensor]:
        bias = {} if layer.bias is None else {"bias": layer.bias[rows]}
        return self.packed_tensors(layer, part) | bias

    def process_weights_after_loading(self, layer: Linear) -> None:
        for part, (name, scheme, _) in self.parts.items():
            for kind in scheme.check(name, self.packed_tensors(layer, part)):
                delattr(layer, f"{part}_{kind}")

    def unpack(self, layer: Linear, part: str) -> QuantizedWeight:
        """A part's weight, taken apart."""
        return self.parts[part].scheme.unpack(self.packed_tensors(layer, part))

    def dequantize(self, layer: Linear) -> torch.Tensor:
        """The whole weight, float32 ``[output_size, input_size]``."""
        return torch.cat([self.unpack(layer, part).dequantize() for part in self.parts])

    @returns_product
    def apply(self, layer: Linear, x: torch.Tensor) -> torch.Tensor:
        output = torch.cat([y for part in self.parts for y in self._products(layer, part, x)], -1)
        return (output if layer.bias is None else output + layer.bias).to(x.dtype)

    def embedding(self, layer: Any, token_ids: torch.Tensor) -> torch.Tensor:
        ((part, (_, scheme, _)),) = self.parts.items()
        rows = {kind: t[token_ids] for kind, t in self.packed_tensors(layer, part).items()}
        return scheme.unpack(rows).dequantize()

    def _products(self, layer: Linear, part: str, x: torch.Tensor) -> Iterator[torch.Tensor]:
        """A part's product, float32, in tiles of its outputs."""
        _, scheme, rows = self.parts[part]
        tensors = self.packed_tensors(layer, part)
        size = rows.stop - rows.start
        rounded = scheme.round_input(x.float(), tensors)
        step = scheme.output_step
        step = max(TILE // layer.input_size // step, 1) * step
        for begin in range(0, size, step):
            end = min(begin + step, size)
            weight = scheme.unpack(scheme.narrow(tensors, begin, end, size))
            yield F.linear(rounded, weight.dequantize())


SCALES = (torch.float16, torch.bfloat16, torch.float32)
TILE = 2**20  # numbers of a weight that are dequantized at once, if an output has no more


class QuantizationConfig(ABC):
    """A checkpoint's quantization: which layers are quantized, and how (vLLM's name)."""

    name: str  # quant_method in a config.json
    ignored_tensors: tuple[str, ...] = ()  # endings of tensors that no linear layer needs

    @classmethod
    @abstractmethod
    def from_config(cls, config: dict, source: str) -> QuantizationConfig:
        """Read a ``quantization_config``; ``source`` is the file's name in messages.

        Raises:
            ValueError: naming a field that has a value which we do not have.
        """

    @abstractmethod
    def get_scheme(self, name: str) -> Scheme | None:
        """Scheme of the checkpoint's linear layer of this name; None: it is not quantized."""

    def get_quant_method(
        self,
        layer: Linear,
        parts: Mapping[str, LinearPart],
        stored: Mapping[str, torch.Tensor],
    ) -> LinearMethod | None:
        """The method for a layer whose weight is not made yet; None: a plain one.

        Args:
            layer: of the model.
            parts: the layer's parts by their names in the checkpoint.
            stored: the checkpoint's tensors; shapes and dtypes are enough.
        """
        schemes = {name: self.get_scheme(name) for name in parts}
        if not any(schemes.values()):
            return None
        quantized = {
            p.part: QuantizedPart(name, schemes[name] or FloatScheme(), p.rows)
            for name, p in parts.items()
        }
        return QuantizedLinearMethod(quantized, stored)

    def get_embedding_method(
        self, parts: Mapping[str, LinearPart], stored: Mapping[str, torch.Tensor]
    ) -> LinearMethod | None:
        """The method for the embedding, and for a head that is not quantized; None: a plain one.

        Their numbers stay in the checkpoint's 16 bits also where the model's have 32.
        """
        ((name, part),) = parts.items()
        found = stored.get(f"{name}.weight")
        if found is None or found.dtype.itemsize != 2 or torch.get_default_dtype().itemsize != 4:
            return None
        quantized = {part.part: QuantizedPart(name, FloatScheme(), part.rows)}
        return QuantizedLinearMethod(quantized, stored)
