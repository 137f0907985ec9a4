"""Linear methods for a CPU: the same product, by the fastest implementation here.

Which they are is measured when a model is loaded, in milliseconds: the names of processors do not
tell it. (vLLM: ``dispatch_cpu_unquantized_gemm``, vllm/model_executor/layers/utils.py)
"""

from __future__ import annotations

import time
from functools import partial

import torch
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


class TiledLinearMethod(LinearMethod):
    """GEMM in float32 with a weight of another dtype, converted tile by tile.

    A tile is used as soon as it is made, while it is in the processor's cache, so that memory is
    read in the form in which the weight is kept. Subclasses say how that is converted.
    """

    def rows(self, layer: Linear, begin: int, end: int) -> torch.Tensor:
        """Rows of the weight, float32 ``[end - begin, input_size]``."""
        raise NotImplementedError

    @returns_product
    def apply(self, layer: Linear, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        output = torch.empty(len(x), layer.output_size)
        step = max(1, _TILE // layer.input_size)
        for begin in range(0, layer.output_size, step):
            end = min(begin + step, layer.output_size)
            torch.mm(wide, self.rows(layer, begin, end).T, out=output[:, begin:end])
        if layer.bias is not None:
            output += layer.bias
        return output.to(x.dtype)


class WidenedLinearMethod(TiledLinearMethod, UnquantizedLinearMethod):
    """A 16-bit weight, widened to float32 on a processor without fast 16-bit products.

    One row is multiplied as it is: that reads each element once, and half as many bytes. For torch;
    with numba see ``PanelLinearMethod``.
    """

    def process_weights_after_loading(self, layer: Linear) -> None:
        if layer.weight.nbytes <= WIDENED_ONCE:
            layer.weight = nn.Parameter(layer.weight.detach().float(), requires_grad=False)

    def rows(self, layer: Linear, begin: int, end: int) -> torch.Tensor:
        return layer.weight[begin:end].float()

    def apply(self, layer: Linear, x: torch.Tensor) -> torch.Tensor:
        if len(x) == 1 and layer.weight.dtype == x.dtype:
            return UnquantizedLinearMethod.apply(self, layer, x)
        return super().apply(layer, x)


class PanelLinearMethod(UnquantizedLinearMethod, EmbeddingMethod):
    """Compiled GEMM in float32, with the weight in panels (``gemm/panels.py``).

    It has little overhead, and the threads of the rest of a layer: a library has threads of its
    own, and each kind would spin while the other works.
    """

    def __init__(self):
        from minivllm.cpu.gemm import panels  # numba need not be there

        self._panels = panels

    def process_weights_after_loading(self, layer: Linear) -> None:
        weight = layer.weight.detach()
        if weight.nbytes <= WIDENED_ONCE:
            weight = weight.float()
        layer.weight = nn.Parameter(self._panels.pack(weight), requires_grad=False)

    def apply(self, layer: Linear, x: torch.Tensor) -> torch.Tensor:
        return self._panels.multiply(x, layer.weight, layer.bias, layer.output_size).type_as(x)

    def embedding(self, layer: Linear, token_ids: torch.Tensor) -> torch.Tensor:
        return self._panels.unpack_rows(layer.weight, layer.input_size, token_ids)

    def array_product(self, layer: Linear, dtype: torch.dtype) -> ArrayProduct:
        if dtype != torch.float32:
            return super().array_product(layer, dtype)  # torch converts
        return partial(
            self._panels.multiply_arrays,
            panels=layer.weight.numpy(),
            bias=self._panels.bias_array(layer.bias),
            output_size=layer.output_size,
        )


def choose_method(weight: torch.Tensor) -> LinearMethod:
    """The method for a weight of this shape and dtype on this processor."""
    if weight.dtype != torch.float32:
        found = fastest_method(weight.dtype, _SHAPE_16_BIT)
        if isinstance(found, WidenedLinearMethod) and numba_obstacle() is None:
            return PanelLinearMethod()  # not tried out: where it loses, it need not be compiled
        return found
    if weight.nbytes > IN_CACHE:
        return candidates(weight.dtype)[0]
    return fastest_method(weight.dtype, (weight.shape[0], weight.shape[1]))


def candidates(dtype: torch.dtype) -> list[LinearMethod]:
    """Linear methods for a weight of this dtype on this processor; the first suits large ones."""
    onednn = torch.ops.mkldnn
    packs = torch.backends.mkldnn.is_available() and (
        dtype == torch.float32
        or (dtype == torch.bfloat16 and onednn._is_mkldnn_bf16_supported())
        or (dtype == torch.float16 and onednn._is_mkldnn_fp16_supported())
    )
    library = OneDNNLinearMethod() if packs else UnquantizedLinearMethod()
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
_PROBE_ROWS = 32  # a batch of decodes
_CLEARLY = 1.25  # times as fast: by less, two measurements of the same product differ
_PROBES = 7  # the best counts


@torch.inference_mode()
def _seconds(method: LinearMethod, dtype: torch.dtype, shape: tuple[int, int]) -> float:
    """Shortest time of one product, in CPU seconds of one thread, which contention leaves alone."""
    layer = Linear(shape[1], shape[0], bias=False)
    layer.weight = nn.Parameter(torch.full(shape, 0.01, dtype=dtype), requires_grad=False)
    method.process_weights_after_loading(layer)
    x = torch.full((_PROBE_ROWS, shape[1]), 0.01, dtype=dtype)

    def probe() -> float:
        begin = time.thread_time()
        method.apply(layer, x)
        return time.thread_time() - begin

    with one_thread():
        return min(probe() for _ in range(_PROBES))
