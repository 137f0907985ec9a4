"""Linear method for quantized layers on a CPU: codes in panels, widened in registers.

A format's own method dequantizes the whole weight for every product, which is its definition. Here
the codes are brought into one of two layouts once, after loading: nibbles, or bytes. Products take
and give arrays of float32 or bfloat16. With float32 no row is rounded; of bfloat16 a processor with
VNNI multiplies two bytes a number (``gemm/two_byte_rows.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from minivllm.cpu.arena import Arena
from minivllm.cpu.compiled import narrow, parallel_kernel, widen
from minivllm.cpu.gemm import int8_panels, panels, quantized_panels, two_byte_rows
from minivllm.cpu.sharing import shared_range
from minivllm.models.linear import ArrayProduct, EmbeddingMethod, Linear, LinearMethod
from minivllm.quantization.base_config import QuantizedLinearMethod, Scheme
from minivllm.quantization.codes import Codes, codes_of_parts
from minivllm.quantization.compressed_tensors import Int8Scheme
from minivllm.utils.tensors import as_numpy, as_tensor

WORTH_SHARING = 2**17  # elements to convert that are worth several threads
ARRAYS = (torch.float32, torch.bfloat16)  # what products take and give


class PanelPart(NamedTuple):
    """Some of a layer's outputs, which are alike."""

    tensors: dict[str, torch.Tensor]  # in panels
    product: ArrayProduct
    rows: Callable[[torch.Tensor], torch.Tensor]  # of the weight, by their numbers


class QuantizedPanelLinearMethod(EmbeddingMethod):
    """Compiled GEMM with codes in panels; see ``choose_quantized_method``."""

    def __init__(
        self,
        codes: list[Codes],
        arena: Arena,
        rounds_rows: bool = False,
        round_input: ArrayProduct | None = None,
    ):
        self._codes, self._rounds_rows, self._round_input = codes, rounds_rows, round_input
        self._arena = arena
        self.parts: list[PanelPart] = []

    def create_weights(self, layer: Linear) -> None:
        """No-op: the format's own method has created them."""

    def process_weights_after_loading(self, layer: Linear) -> None:
        """Let the layer have the panels instead of the file's tensors."""
        for name in [name for name, _ in layer.named_parameters(recurse=False) if name != "bias"]:
            delattr(layer, name)
        end = 0
        while self._codes:
            codes = self._codes.pop(0)
            begin, end = end, end + len(codes.q)
            bias = panels.bias_array(layer.bias)[begin:end]
            part = _pack(codes, bias, self._rounds_rows, self._arena)
            for name, tensor in part.tensors.items():
                parameter = nn.Parameter(tensor, requires_grad=False)
                layer.register_parameter(f"{name}_{len(self.parts)}", parameter)
            self.parts.append(part)

    def apply(self, layer: Linear, x: torch.Tensor) -> torch.Tensor:
        rows = x if x.dtype in ARRAYS else x.float()
        return as_tensor(self._multiply(as_numpy(rows.contiguous())), rows.dtype).type_as(x)

    def array_product(self, layer: Linear, dtype: torch.dtype) -> ArrayProduct:
        if dtype not in ARRAYS:
            return super().array_product(layer, dtype)  # torch converts
        is_plain = len(self.parts) == 1 and self._round_input is None
        return self.parts[0].product if is_plain else self._multiply

    def embedding(self, layer: Linear, token_ids: torch.Tensor) -> torch.Tensor:
        (part,) = self.parts
        return part.rows(token_ids)

    def _multiply(self, x: np.ndarray) -> np.ndarray:
        if self._round_input is not None:
            return _in_float32(self._multiply_rounded)(x)
        return self._multiply_parts(x)

    def _multiply_rounded(self, x: np.ndarray) -> np.ndarray:
        assert self._round_input is not None, "the format rounds"
        return self._multiply_parts(self._round_input(x))

    def _multiply_parts(self, x: np.ndarray) -> np.ndarray:
        outputs = [part.product(x) for part in self.parts]
        return outputs[0] if len(outputs) == 1 else np.concatenate(outputs, axis=1)


def _in_float32(product: ArrayProduct) -> ArrayProduct:
    """The same product, also of bfloat16, by way of float32."""

    def multiply(x: np.ndarray) -> np.ndarray:
        if x.dtype == np.float32:
            return product(x)
        return _converted(product(_converted(x, np.dtype(np.float32))), x.dtype)

    return multiply


def _converted(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    output = np.empty(x.shape, dtype)
    _convert(x.size, output, x)
    return output


@parallel_kernel(WORTH_SHARING)
def _convert(share, output, x):
    for r in shared_range(share, len(x)):
        for c in range(x.shape[1]):
            output[r, c] = narrow(widen(x[r, c]), output)


def _pack(codes: Codes, bias: np.ndarray, rounds_rows: bool, arena: Arena) -> PanelPart:
    """Panels of some outputs, and their product."""
    size, depth = codes.q.shape
    if codes.q.dtype.itemsize > 1:  # floats
        weight = arena.place(panels.pack(codes.q))
        array = as_numpy(weight)
        return PanelPart(
            {"weight": weight},
            _in_float32(lambda x: panels.multiply_arrays(x, array, bias, size)),
            partial(panels.unpack_rows, weight, depth),
        )
    packed = quantized_panels.pack(codes.q, codes.scales, codes.zeros, codes.mins)
    packed = quantized_panels.QuantizedPanels(*map(arena.place, packed))
    words, scales, mins = (as_numpy(tensor) for tensor in packed)

    order = None if codes.order is None else codes.order.numpy()

    def in_float32(x: np.ndarray) -> np.ndarray:
        if rounds_rows:
            return int8_panels.multiply_arrays(x, words, scales, bias, size)
        return quantized_panels.multiply_arrays(
            x, words, scales, mins=mins, bias=bias, output_size=size
        )

    in_two_bytes = not rounds_rows and two_byte_rows.fits(words, scales)
    either = _in_float32(in_float32)

    def product(x: np.ndarray) -> np.ndarray:
        if order is not None:
            x = np.take(x, order, axis=1)
        if in_two_bytes and x.dtype != np.float32:
            return two_byte_rows.multiply_arrays(
                x, words, scales, mins=mins, bias=bias, output_size=size
            )
        return either(x)

    rows = partial(quantized_panels.unpack_rows, packed)
    return PanelPart(packed._asdict(), product, rows)


def choose_quantized_method(
    method: QuantizedLinearMethod, layer: Linear, arena: Arena
) -> LinearMethod:
    """Panels for a layer's codes, in this arena, or its own method where they do not fit.

    They fit if all parts have groups that are a multiple of a word, and round the input alike.
    """
    codes = codes_of_parts(method, layer)
    if codes is None:
        return method
    schemes = [part.scheme for part in method.parts.values()]
    if not any(map(_rounds, schemes)):
        return QuantizedPanelLinearMethod(codes, arena)
    if all(map(_rounds_rows, schemes)) and all(map(_one_group, codes)):
        return QuantizedPanelLinearMethod(codes, arena, rounds_rows=True)
    of_input = [_of_input(method.packed_tensors(layer, part)) for part in method.parts]
    first = of_input[0]
    alike = all(scheme == schemes[0] for scheme in schemes) and all(
        torch.equal(tensor, first[kind]) for tensors in of_input for kind, tensor in tensors.items()
    )
    if not alike:
        return method

    def round_input(x: np.ndarray) -> np.ndarray:
        return schemes[0].round_input(torch.from_numpy(x), first).numpy()

    return QuantizedPanelLinearMethod(codes, arena, round_input=round_input)


def _rounds(scheme: Scheme) -> bool:
    return type(scheme).round_input is not Scheme.round_input and bool(
        getattr(scheme, "activations", True)
    )


def _rounds_rows(scheme: Scheme) -> bool:
    """True if a product's rows are rounded to int8, each with a scale of its own."""
    return isinstance(scheme, Int8Scheme) and scheme.activations == "dynamic"


def _of_input(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {kind: tensor for kind, tensor in tensors.items() if kind.startswith("input_")}


def _one_group(codes: Codes) -> bool:
    return codes.q.dtype == torch.int8 and codes.scales.shape[1] == 1 and codes.zeros is None
