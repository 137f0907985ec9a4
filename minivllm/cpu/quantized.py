"""Linear method for quantized layers on a CPU: codes in panels, widened in registers.

A format's own method dequantizes the whole weight for every product, which is its definition. Here
the codes are brought into one of two layouts once, after loading: nibbles, or bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from minivllm.cpu.gemm import int8_panels, quantized_panels
from minivllm.cpu.gemm.panels import bias_array
from minivllm.models.linear import ArrayProduct, Linear, LinearMethod
from minivllm.quantization.base_config import QuantizedLinearMethod, QuantizedWeight, Scheme
from minivllm.quantization.compressed_tensors import Int8Scheme
from minivllm.utils.tensors import as_numpy

_NIBBLE, _BYTE = 8, 128  # zero points of symmetric codes without a sign


class Codes(NamedTuple):
    """A weight as ``quantized_panels.pack`` takes it, and the order of inputs that it has."""

    q: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    order: torch.Tensor | None  # int64 [input_size]; None: as they come


class QuantizedPanelLinearMethod(LinearMethod):
    """Compiled GEMM in float32 with codes in panels; see ``choose_quantized_method``."""

    def __init__(self, codes: Codes, rounds_rows: bool):
        self._multiply = int8_panels if rounds_rows else quantized_panels
        self.panels = quantized_panels.pack(codes.q, codes.scales, codes.zeros)
        self.order = codes.order

    def create_weights(self, layer: Linear) -> None:
        """Do nothing: the format's own method has created them."""

    def process_weights_after_loading(self, layer: Linear) -> None:
        """Let the layer have the panels instead of the file's tensors."""
        for name in [name for name, _ in layer.named_parameters(recurse=False) if name != "bias"]:
            delattr(layer, name)
        for name, tensor in zip(self.panels._fields, self.panels, strict=True):
            layer.register_parameter(name, nn.Parameter(tensor, requires_grad=False))

    def apply(self, layer: Linear, x: torch.Tensor) -> torch.Tensor:
        rows = x if self.order is None else x[:, self.order]
        output = self._multiply.multiply(rows, self.panels, layer.bias, layer.output_size)
        return output.type_as(x)

    def array_product(self, layer: Linear, dtype: torch.dtype) -> ArrayProduct:
        if dtype != torch.float32 or self.order is not None:
            return super().array_product(layer, dtype)  # torch converts, or sorts
        num_arrays = 2 if self._multiply is int8_panels else 3
        arrays = [as_numpy(tensor) for tensor in self.panels[:num_arrays]]
        multiply, bias = self._multiply.multiply_arrays, bias_array(layer.bias)

        def product(x: np.ndarray) -> np.ndarray:
            return multiply(x, *arrays, bias, layer.output_size)

        return product


def choose_quantized_method(method: QuantizedLinearMethod, layer: Linear) -> LinearMethod:
    """Panels for a layer's codes, or its own method where they do not fit.

    They fit if all parts have the same groups, a multiple of a word, and the input is not rounded,
    or each row to int8 with a scale of its own.
    """
    schemes = [part.scheme for part in method.parts.values()]
    rounds = {_rounds_rows(scheme) for scheme in schemes}
    if rounds not in ({True}, {False}):
        return method
    weights = [_codes(method.unpack(layer, part)) for part in method.parts]
    if not (codes := _joined([weight for weight in weights if weight is not None])):
        return method
    if len(codes.q) < layer.output_size or (True in rounds and not _one_group(codes)):
        return method
    return QuantizedPanelLinearMethod(codes, rounds_rows=True in rounds)


def _rounds_rows(scheme: Scheme) -> bool | None:
    """True if a product's rows are rounded to int8, False if not at all, None for another way."""
    if type(scheme).round_input is Scheme.round_input:
        return False
    if isinstance(scheme, Int8Scheme) and scheme.activations != "static":
        return scheme.activations == "dynamic"
    return None


def _one_group(codes: Codes) -> bool:
    return codes.q.dtype == torch.int8 and codes.scales.shape[1] == 1 and codes.zeros is None


def _codes(weight: QuantizedWeight) -> Codes | None:
    """A weight's codes as panels take them; None if they do not fit."""
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
        zeros = torch.full(weight.scales.shape, zeros)
    zeros = zeros.int() - (_BYTE if middle == _BYTE else 0)
    if int(zeros.min()) < -128 or int(zeros.max()) > 127:
        return None
    return Codes(q, weight.scales, zeros.to(torch.int8), order)


def _joined(parts: list[Codes]) -> Codes | None:
    """Codes of all parts of a layer, one below the other; None if they are unlike."""
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
