"""Linear method for quantized layers on a CPU: codes in panels, widened in registers.

A format's own method dequantizes the whole weight for every product, which is its definition. Here
the codes are brought into one of two layouts once, after loading: nibbles, or bytes.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from minivllm.cpu.gemm import int8_panels, quantized_panels
from minivllm.cpu.gemm.panels import bias_array
from minivllm.models.linear import ArrayProduct, Linear, LinearMethod
from minivllm.quantization.base_config import QuantizedLinearMethod, Scheme
from minivllm.quantization.codes import Codes, codes_of_layer
from minivllm.quantization.compressed_tensors import Int8Scheme
from minivllm.utils.tensors import as_numpy


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
    codes = codes_of_layer(method, layer)
    if codes is None or (True in rounds and not _one_group(codes)):
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
