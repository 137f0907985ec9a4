"""Linear methods for a CPU: the same product, by the fastest implementation here.

Which they are is measured when a model is loaded, in milliseconds: the names of processors do not
tell it. (vLLM: ``dispatch_cpu_unquantized_gemm``, vllm/model_executor/layers/utils.py)
"""

from __future__ import annotations

import time
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from minivllm.cpu.threads import one_thread
from minivllm.logger import init_logger
from minivllm.models.linear import (
    ArrayProduct,
    EmbeddingMethod,
    Linear,
    LinearMethod,
    UnquantizedLinearMethod,
)
from minivllm.models.product import returns_product
from minivllm.utils.numba_support import numba_obstacle
from minivllm.utils.tensors import as_numpy

logger = init_logger(__name__)

IN_CACHE = 2**22  # weights of up to this many bytes are assumed to stay in the processor's cache
WIDENED_ONCE = 2**20  # 16-bit weights of up to this many bytes become float32, at loading
_TILE = 2**18  # elements of a float32 tile: a MiB, which stays in the cache until it is used


class OneDNNLinearMethod(UnquantizedLinearMethod):
    """oneDNN's GEMM, with the weight packed in the order in which it is read.

    Without that oneDNN packs it in every call, which for the few rows of a decode costs half as
    much as the product itself.
    """

    def process_weights_after_loading(self, layer: Linear) -> None:
        packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach())
        layer.weight = nn.Parameter(packed, requires_grad=False)

    @returns_product
    def apply(self, layer: Linear, x: torch.Tensor) -> torch.Tensor:
        linear = torch.ops.mkldnn._linear_pointwise
        return linear(x, layer.weight, layer.bias, "none", [], "")


class TransposedLinearMethod(UnquantizedLinearMethod):
    """BLAS's GEMM, with the weight stored as ``[input_size, output_size]``.

    The least overhead, where the BLAS is good at small matrices.
    """

    def process_weights_after_loading(self, layer: Linear) -> None:
        layer.weight = nn.Parameter(layer.weight.detach().T.contiguous(), requires_grad=False)

    @returns_product
    def apply(self, layer: Linear, x: torch.Tensor) -> torch.Tensor:
        if layer.bias is None:
            return torch.mm(x, layer.weight)
        return torch.addmm(layer.bias, x, layer.weight)


class WidenedLinearMethod(UnquantizedLinearMethod):
    """A 16-bit weight, widened to float32 by tiles, on a processor without fast 16-bit products.

    A tile is used as soon as it is made, while it is in the processor's cache. One row is
    multiplied as it is: that reads each element once, and half as many bytes. For torch; with numba
    see ``PanelLinearMethod``.
    """

    def process_weights_after_loading(self, layer: Linear) -> None:
        if layer.weight.nbytes <= WIDENED_ONCE:
            layer.weight = nn.Parameter(layer.weight.detach().float(), requires_grad=False)

    @returns_product
    def apply(self, layer: Linear, x: torch.Tensor) -> torch.Tensor:
        if len(x) == 1 and layer.weight.dtype == x.dtype:
            return F.linear(x, layer.weight, layer.bias)
        wide = x.float()
        output = torch.empty(len(x), layer.output_size)
        step = max(1, _TILE // layer.input_size)
        for begin in range(0, layer.output_size, step):
            tile = layer.weight[begin : begin + step].float()
            torch.mm(wide, tile.T, out=output[:, begin : begin + step])
        if layer.bias is not None:
            output += layer.bias
        return output.to(x.dtype)


class PanelLinearMethod(UnquantizedLinearMethod, EmbeddingMethod):
    """Compiled GEMM in float32, with the weight in panels (``gemm/panels.py``).

    It has little overhead, and the threads of the rest of a layer: a library has threads of its
    own, and each kind would spin while the other works.
    """

    row_dtype = torch.float32  # of rows, in which they are multiplied

    def __init__(self):
        from minivllm.cpu.gemm import panels  # numba need not be there

        self._panels = panels

    def process_weights_after_loading(self, layer: Linear) -> None:
        weight = layer.weight.detach()
        if weight.nbytes <= WIDENED_ONCE:
            weight = weight.float()
        layer.weight = nn.Parameter(self._panels.pack(weight), requires_grad=False)

    def apply(self, layer: Linear, x: torch.Tensor) -> torch.Tensor:
        rows = x.to(self.row_dtype)
        return self._panels.multiply(rows, layer.weight, layer.bias, layer.output_size).type_as(x)

    def embedding(self, layer: Linear, token_ids: torch.Tensor) -> torch.Tensor:
        return self._panels.unpack_rows(layer.weight, layer.input_size, token_ids)

    def array_product(self, layer: Linear, dtype: torch.dtype) -> ArrayProduct:
        if dtype != self.row_dtype:
            return super().array_product(layer, dtype)  # torch converts
        return partial(
            self._panels.multiply_arrays,
            panels=as_numpy(layer.weight),
            bias=self._panels.bias_array(layer.bias),
            output_size=layer.output_size,
        )


class BFloat16PanelLinearMethod(PanelLinearMethod):
    """Compiled GEMM of bfloat16, by the processor's instructions for pairs of numbers."""

    row_dtype = torch.bfloat16

    def process_weights_after_loading(self, layer: Linear) -> None:
        packed = self._panels.pack_pairs(layer.weight.detach())
        layer.weight = nn.Parameter(packed, requires_grad=False)

    def embedding(self, layer: Linear, token_ids: torch.Tensor) -> torch.Tensor:
        return self._panels.unpack_pairs(layer.weight, layer.input_size, token_ids)


def is_paired(dtype: torch.dtype) -> bool:
    """True if this processor multiplies pairs of this dtype, and loops can be compiled."""
    if dtype != torch.bfloat16 or numba_obstacle() is not None:
        return False
    from minivllm.cpu.gemm import microkernel

    return microkernel.HAS_BFLOAT16


def panel_method(dtype: torch.dtype) -> PanelLinearMethod:
    """Panels for weights of this dtype; numba must be there."""
    return BFloat16PanelLinearMethod() if is_paired(dtype) else PanelLinearMethod()


def choose_method(weight: torch.Tensor) -> LinearMethod:
    """The method for a weight of this shape and dtype on this processor."""
    size, depth = weight.shape
    if weight.dtype == torch.float32:
        if weight.nbytes > IN_CACHE:
            return candidates(weight.dtype)[0]
        return fastest_method(weight.dtype, (size, depth))
    if is_paired(weight.dtype):  # what some of the outputs tell holds for all
        some = max(1, _TRIED // depth // _PANEL) * _PANEL
        return fastest_method(weight.dtype, (min(size, some), depth))
    found = fastest_method(weight.dtype, _SHAPE_16_BIT)
    if isinstance(found, WidenedLinearMethod) and numba_obstacle() is None:
        return PanelLinearMethod()  # not tried out: where it loses, it need not be compiled
    return found


def candidates(dtype: torch.dtype) -> list[LinearMethod]:
    """Linear methods for a weight of this dtype on this processor; the first suits large ones."""
    onednn = torch.ops.mkldnn
    packs = torch.backends.mkldnn.is_available() and (
        dtype == torch.float32
        or (dtype == torch.bfloat16 and onednn._is_mkldnn_bf16_supported())
        or (dtype == torch.float16 and onednn._is_mkldnn_fp16_supported())
    )
    library = OneDNNLinearMethod() if packs else UnquantizedLinearMethod()
    if is_paired(dtype):
        return [BFloat16PanelLinearMethod(), library]
    if dtype != torch.float32:
        return [library, WidenedLinearMethod()]
    compiled = [PanelLinearMethod()] if numba_obstacle() is None else []
    return [*compiled, library, TransposedLinearMethod()]


Timings = dict[tuple[torch.dtype, tuple[int, int]], type[LinearMethod]]
# measured here or by another rank: the fastest class for a weight's dtype and shape
_fastest: Timings = {}


def export_timings() -> Timings:
    """The fastest methods that are known by now: plain values, which other ranks can be sent."""
    return dict(_fastest)


def import_timings(timings: Timings) -> None:
    """Take over what another rank has measured, instead of measuring it here."""
    _fastest.update(timings)


def fastest_method(dtype: torch.dtype, shape: tuple[int, int]) -> LinearMethod:
    """Fastest candidate for a few rows times a weight of this shape: measured once.

    The first one, unless another is faster by more than measurements vary.
    """
    if (dtype, shape) not in _fastest:
        seconds = {type(m): _seconds(m, dtype, shape) for m in candidates(dtype)}
        first = next(iter(seconds))
        best = min(seconds, key=seconds.__getitem__)
        found = best if _CLEARLY * seconds[best] < seconds[first] else first
        times = ", ".join(f"{kind.__name__} {1e6 * s:.0f} us" for kind, s in seconds.items())
        logger.debug("%s weights %s: %s (%s)", dtype, list(shape), found.__name__, times)
        _fastest[dtype, shape] = found
    return _fastest[dtype, shape]()


_SHAPE_16_BIT = (1024, 1024)  # too large to be widened once
_TRIED = 2**19  # elements of a weight of pairs of bfloat16
_PANEL = 64  # outputs of one; they should be whole
_PROBE_ROWS = 32  # a batch of decodes
_PROMPT_ROWS = 128  # where a library may have a matrix unit
_CLEARLY = 1.25  # times as fast: by less, two measurements of the same product differ
_PROBES = 7  # the best counts


@torch.inference_mode()
def _seconds(method: LinearMethod, dtype: torch.dtype, shape: tuple[int, int]) -> float:
    """Shortest time of one product, in CPU seconds of one thread, which contention leaves alone.

    Of pairs of bfloat16 that of as many rows of a prompt is added.
    """
    layer = Linear(shape[1], shape[0], bias=False, quant_method=method)
    layer.weight = nn.Parameter(torch.full(shape, 0.01, dtype=dtype), requires_grad=False)
    method.process_weights_after_loading(layer)
    rows = (_PROBE_ROWS, _PROMPT_ROWS) if is_paired(dtype) else (_PROBE_ROWS,)
    with one_thread():
        return sum(_PROBE_ROWS / n * _shortest(layer, n, dtype) for n in rows)


def _shortest(layer: Linear, num_rows: int, dtype: torch.dtype) -> float:
    """Shortest time of a layer's product with this number of rows."""
    x = torch.full((num_rows, layer.input_size), 0.01, dtype=dtype)

    def probe() -> float:
        begin = time.thread_time()
        layer(x)
        return time.thread_time() - begin

    return min(probe() for _ in range(_PROBES))
