"""Linear methods: the same product however a weight is kept, alone and in the engine."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from minivllm.kv.manager import KVCacheManager
from minivllm.lab.exercises.labs.oracle_check import first_wrong_token
from minivllm.models import cpu_linear
from minivllm.models.cpu_linear import (
    WIDENED_ONCE,
    FewRowsLinearMethod,
    OneDNNLinearMethod,
    TransposedLinearMethod,
    WidenedLinearMethod,
    candidates,
    choose_method,
)
from minivllm.models.linear import Linear, UnquantizedLinearMethod
from minivllm.ops import few_rows
from minivllm.ops.few_rows import MOST_ROWS
from minivllm.ops.microkernel import WIDTH

ANY, WIDENED = UnquantizedLinearMethod, [WidenedLinearMethod, FewRowsLinearMethod]
METHODS = {
    torch.float32: [ANY, OneDNNLinearMethod, TransposedLinearMethod],
    torch.bfloat16: [ANY, OneDNNLinearMethod, *WIDENED],
    torch.float16: [ANY, OneDNNLinearMethod, *WIDENED],
}
PAIRS = [(dtype, method) for dtype, methods in METHODS.items() for method in methods]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def skip_if_it_cannot_run(method, dtype):
    if method is OneDNNLinearMethod and type(candidates(dtype)[0]) is not method:
        pytest.skip(f"no {dtype} products of oneDNN on this processor")


@pytest.mark.parametrize(("dtype", "method"), PAIRS)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("sizes", [(48, 40), (1000, 700), (1040, 572)], ids=str)  # wide, in tiles
@torch.inference_mode()
def test_every_method_is_the_same_product(dtype, method, bias, sizes):
    skip_if_it_cannot_run(method, dtype)
    rng = torch.Generator().manual_seed(0)
    layer = Linear(*sizes, bias, method())
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=rng).to(dtype)
    weight, offset = layer.weight.clone().double(), layer.bias
    layer.process_weights_after_loading()
    for rows in (1, 2, 17, 33):
        x = (torch.randn(rows, sizes[0], generator=rng) / sizes[0] ** 0.5).to(dtype)
        want = F.linear(x.double(), weight, None if offset is None else offset.double())
        out = layer(x)
        assert out.dtype == dtype
        tolerance = TOLERANCE[dtype]
        torch.testing.assert_close(out.double(), want, rtol=tolerance, atol=tolerance)


def test_a_large_16_bit_weight_stays_as_it_is_and_a_small_one_is_widened():
    for sizes, dtype in (((512, 512), torch.float32), ((1024, 1024), torch.bfloat16)):
        layer = Linear(*sizes, bias=False, quant_method=WidenedLinearMethod())
        layer.weight.data = torch.zeros(layer.weight.shape, dtype=torch.bfloat16)
        assert (layer.weight.nbytes <= WIDENED_ONCE) == (dtype == torch.float32)
        layer.process_weights_after_loading()
        assert layer.weight.dtype == dtype


@torch.inference_mode()
def test_a_few_rows_are_multiplied_in_registers_if_vectors_fit(monkeypatch):
    calls, rng = [], torch.Generator().manual_seed(0)
    whole = few_rows.multiply
    monkeypatch.setattr(few_rows, "multiply", lambda *args: calls.append(1) or whole(*args))
    for sizes, fits in (
        ((1040, 572), True),
        ((1000, 700), 1000 % WIDTH == 0),
        ((1040, 571), False),
    ):
        layer = Linear(*sizes, bias=False, quant_method=FewRowsLinearMethod())
        weight = torch.randn(layer.weight.shape, generator=rng).bfloat16()
        layer.weight.data = weight
        layer.process_weights_after_loading()
        for rows in (1, 2, MOST_ROWS, MOST_ROWS + 1):
            calls.clear()
            layer(torch.zeros(rows, sizes[0], dtype=torch.bfloat16))
            assert bool(calls) == (fits and 1 < rows <= MOST_ROWS)


def seconds_if(fastest, method, dtype, shape):
    return 1e-6 if type(method) is fastest else 2e-6


@pytest.mark.parametrize("dtype", METHODS, ids=str)
def test_the_fastest_candidate_is_taken_and_the_log_says_which(dtype, monkeypatch, capsys):
    for fastest in candidates(dtype):
        cpu_linear.fastest_method.cache_clear()
        monkeypatch.setattr(cpu_linear, "_seconds", partial(seconds_if, type(fastest)))
        cpu_linear.logger.setLevel("DEBUG")
        widens = type(fastest) is WidenedLinearMethod  # which is then done with loops
        expected = FewRowsLinearMethod if widens else type(fastest)
        assert type(choose_method(torch.empty(8, 8, dtype=dtype))) is expected
        said = capsys.readouterr().out
        assert f"{type(fastest).__name__} (" in said
        assert f"{type(fastest).__name__} 1 us" in said
    cpu_linear.fastest_method.cache_clear()
    cpu_linear.logger.setLevel("NOTSET")


def test_a_large_float32_weight_is_not_tried_out(monkeypatch):
    monkeypatch.setattr(cpu_linear, "_seconds", None)
    large = torch.empty(cpu_linear.IN_CACHE // 1024 + 1, 256)
    assert type(choose_method(large)) is type(candidates(torch.float32)[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [OneDNNLinearMethod, TransposedLinearMethod, WidenedLinearMethod, FewRowsLinearMethod],
)
def test_the_oracle_holds_with_every_method(method, monkeypatch):
    """Shared prefixes, chunks, samples and preemption at once; the oracle multiplies plainly."""
    used = []
    monkeypatch.setattr(cpu_linear, "choose_method", lambda weight: used.append(1) or method())
    monkeypatch.setattr(cpu_linear, "_TILE", 7 * 32)  # several tiles, the last one smaller
    assert first_wrong_token(KVCacheManager) is None
    assert used
