"""Linear methods: the same product however a weight is kept, alone and in the engine."""

import pickle
from functools import partial
from itertools import product

import pytest
import torch
import torch.nn.functional as F

from minivllm.course.grading.oracle_check import first_wrong_token
from minivllm.cpu import linear
from minivllm.cpu.gemm import microkernel, panels
from minivllm.cpu.linear import (
    WIDENED_ONCE,
    BFloat16PanelLinearMethod,
    OneDNNLinearMethod,
    PanelLinearMethod,
    TransposedLinearMethod,
    WidenedLinearMethod,
    candidates,
    choose_method,
)
from minivllm.kv.manager import KVCacheManager
from minivllm.models.linear import Linear, UnquantizedLinearMethod

ANY = [UnquantizedLinearMethod, OneDNNLinearMethod, PanelLinearMethod]
METHODS = {
    torch.float32: [*ANY, TransposedLinearMethod],
    torch.bfloat16: [*ANY, WidenedLinearMethod, BFloat16PanelLinearMethod],
    torch.float16: [*ANY, WidenedLinearMethod],
}
PAIRS = [(dtype, method) for dtype, methods in METHODS.items() for method in methods]
NEEDS_INSTRUCTIONS = OneDNNLinearMethod, BFloat16PanelLinearMethod
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def skip_if_it_cannot_run(method, dtype):
    if method in NEEDS_INSTRUCTIONS and method not in map(type, candidates(dtype)):
        pytest.skip(f"no {dtype} products by {method.__name__} on this processor")


needs_pairs = pytest.mark.skipif(
    not microkernel.HAS_BFLOAT16, reason="this processor has no instructions for bfloat16"
)


@pytest.mark.combinations(2)
@pytest.mark.parametrize(("dtype", "method"), PAIRS)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(  # few inputs, an odd number; wide, in tiles
    "sizes", [(48, 40), (47, 70), (1000, 700), (1040, 572)], ids=str
)
@torch.inference_mode()
def test_every_method_is_the_same_product(dtype, method, bias, sizes):
    skip_if_it_cannot_run(method, dtype)
    rng = torch.Generator().manual_seed(0)
    layer = Linear(*sizes, bias, method())
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=rng).to(dtype)
    weight, offset = layer.weight.clone().double(), layer.bias
    layer.quant_method.process_weights_after_loading(layer)
    for rows in (1, 2, 3, 17, 200):
        x = (torch.randn(rows, sizes[0], generator=rng) / sizes[0] ** 0.5).to(dtype)
        want = F.linear(x.double(), weight, None if offset is None else offset.double())
        out = layer(x)
        assert out.dtype == dtype
        tolerance = TOLERANCE[dtype]
        torch.testing.assert_close(out.double(), want, rtol=tolerance, atol=tolerance)


def test_a_large_16_bit_weight_stays_as_it_is_and_a_small_one_is_widened():
    cases = ((512, 512), torch.float32), ((1024, 1024), torch.bfloat16)
    for (sizes, dtype), method in product(cases, (WidenedLinearMethod, PanelLinearMethod)):
        layer = Linear(*sizes, bias=False, quant_method=method())
        layer.weight.data = torch.zeros(layer.weight.shape, dtype=torch.bfloat16)
        assert (layer.weight.nbytes <= WIDENED_ONCE) == (dtype == torch.float32)
        layer.quant_method.process_weights_after_loading(layer)
        assert layer.weight.dtype == dtype


@torch.inference_mode()
def test_in_panels_a_row_is_the_same_whatever_is_beside_it():
    """Also to the last bit: batches of any size, on any number of threads."""
    rng = torch.Generator().manual_seed(0)
    for output_size in (3 * panels.LANES, 3 * panels.LANES + 5):
        weight = torch.randn(output_size, 600, generator=rng)
        x, bias = torch.randn(300, 600, generator=rng), torch.randn(output_size, generator=rng)
        packed = panels.pack(weight)
        alone = [panels.multiply(x[i : i + 1], packed, bias, output_size) for i in range(300)]
        for rows in (2, 3, 7, 300):
            together = panels.multiply(x[:rows], packed, bias, output_size)
            assert torch.equal(together, torch.cat(alone[:rows]))


def random_pairs(output_size, input_size):
    """A weight, 80 rows of very different sizes, and a bias, in bfloat16; and the exact product."""
    rng = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(n, input_size, generator=rng).bfloat16() for n in (output_size, 80))
    x *= torch.logspace(-3, 3, 80)[:, None].bfloat16()
    bias = torch.randn(output_size, generator=rng).bfloat16()
    return weight, x, bias, F.linear(x.double(), weight.double(), bias.double())


@needs_pairs
@pytest.mark.parametrize("sizes", [(192, 256), (70, 901), (896, 4864)], ids=str)
@torch.inference_mode()
def test_pairs_of_bfloat16_are_added_up_in_float32_in_one_order(sizes):
    """Each result is the exact one, rounded; a row has the same bits alone and beside others."""
    weight, x, bias, want = random_pairs(*sizes)
    packed = panels.pack_pairs(weight)
    together = panels.multiply(x, packed, bias, sizes[0])
    assert together.dtype == torch.bfloat16
    sizes_of_sums = F.linear(x.double().abs(), weight.double().abs())
    errors = (together.double() - want).abs()
    assert bool((errors <= 2**-8 * want.abs() + 1e-6 * sizes_of_sums).all())
    for rows in range(1, 81):
        assert torch.equal(panels.multiply(x[:rows], packed, bias, sizes[0]), together[:rows])
    alone = [panels.multiply(row[None], packed, bias, sizes[0]) for row in x]
    assert torch.equal(torch.cat(alone), together)


@needs_pairs
@torch.inference_mode()
def test_a_thread_has_outputs_of_its_own_and_changes_no_bits():
    weight, x, bias, _ = random_pairs(1000, 640)
    packed, found, before = panels.pack_pairs(weight), [], torch.get_num_threads()
    try:
        for num_threads in (1, 2):
            torch.set_num_threads(num_threads)
            found.append([panels.multiply(x[:rows], packed, bias, 1000) for rows in (1, 5, 80)])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


@needs_pairs
@torch.inference_mode()
def test_what_is_no_number_in_bfloat16_stays_none():
    """And it stays in its row and its column."""
    weight, x, _, _ = random_pairs(70, 64)
    x[3, 5], x[4, 6], weight[66, 7] = torch.nan, torch.inf, -torch.inf
    out = panels.multiply(x, panels.pack_pairs(weight), None, 70)
    finite = out.isfinite()
    assert not finite[3:5].any()
    assert not finite[:, 66].any()
    assert finite.sum() == 78 * 69


@needs_pairs
@pytest.mark.parametrize("input_size", [64, 63])
def test_rows_of_a_weight_in_pairs_can_be_looked_up(input_size):
    weight, _, _, _ = random_pairs(130, input_size)
    ids = torch.tensor([0, 129, 64, 63, 128, 64])
    found = panels.unpack_pairs(panels.pack_pairs(weight), input_size, ids)
    assert torch.equal(found, weight[ids])


@needs_pairs
def test_a_weight_of_bfloat16_is_tried_by_its_own_shape(monkeypatch):
    """A large one by some whole panels of it; each shape may have another method."""
    tried = []

    def seconds(method, dtype, shape):
        tried.append(shape)
        library_is_faster = shape == (256, 512)
        return 1.0 if (type(method) is OneDNNLinearMethod) == library_is_faster else 2.0

    monkeypatch.setattr(linear, "_fastest", {})
    monkeypatch.setattr(linear, "_seconds", seconds)
    shapes = (256, 256), (256, 512), (9728, 896), (896, 4864), (9600, 896), (3, 2**20)
    found = [type(choose_method(torch.empty(s, dtype=torch.bfloat16))) for s in shapes]
    assert [kind is BFloat16PanelLinearMethod for kind in found] == [True, False, *[True] * 4]
    assert tried[::2] == [(256, 256), (256, 512), (576, 896), (64, 4864), (3, 2**20)]
    assert pickle.loads(pickle.dumps(linear.export_timings())).keys() == {
        (torch.bfloat16, shape) for shape in tried
    }


def test_without_the_instructions_16_bits_are_tried_as_before(monkeypatch):
    monkeypatch.setattr(microkernel, "HAS_BFLOAT16", False)
    tried = []
    monkeypatch.setattr(linear, "_fastest", {})
    monkeypatch.setattr(linear, "_seconds", lambda method, *what: tried.append(what) or 1.0)
    kinds = {type(method) for method in candidates(torch.bfloat16)}
    assert BFloat16PanelLinearMethod not in kinds
    for shape in ((8, 8), (256, 512)):
        assert type(choose_method(torch.empty(shape, dtype=torch.bfloat16))) in kinds
    assert set(tried) == {(torch.bfloat16, linear._SHAPE_16_BIT)}


def seconds_if(fastest, method, dtype, shape):
    return 1e-6 if type(method) is fastest else 2e-6


@pytest.mark.parametrize("dtype", METHODS, ids=str)
def test_the_fastest_candidate_is_taken_and_the_log_says_which(dtype, monkeypatch, capsys):
    for fastest in candidates(dtype):
        monkeypatch.setattr(linear, "_fastest", {})
        monkeypatch.setattr(linear, "_seconds", partial(seconds_if, type(fastest)))
        linear.logger.setLevel("DEBUG")
        widens = type(fastest) is WidenedLinearMethod  # which is then done in panels
        expected = PanelLinearMethod if widens else type(fastest)
        assert type(choose_method(torch.empty(8, 8, dtype=dtype))) is expected
        said = capsys.readouterr().out
        assert f"{type(fastest).__name__} (" in said
        assert f"{type(fastest).__name__} 1 us" in said
    linear.logger.setLevel("NOTSET")


def test_the_first_candidate_is_taken_unless_another_is_clearly_faster(monkeypatch):
    first, other = candidates(torch.float32)[:2]
    for others, expected in ((0.9, first), (0.7, other)):
        seconds = {type(method): 1.0 for method in candidates(torch.float32)} | {
            type(other): others
        }
        monkeypatch.setattr(linear, "_seconds", lambda method, *_, s=seconds: s[type(method)])
        monkeypatch.setattr(linear, "_fastest", {})
        assert type(choose_method(torch.empty(8, 8))) is type(expected)


def test_what_another_rank_has_measured_is_not_measured_again(monkeypatch):
    monkeypatch.setattr(linear, "_seconds", None)
    monkeypatch.setattr(linear, "_fastest", {})
    known = {(torch.float32, (8, 8)): TransposedLinearMethod}
    linear.import_timings(pickle.loads(pickle.dumps(known)))
    assert type(choose_method(torch.empty(8, 8))) is TransposedLinearMethod
    assert linear.export_timings() == known


def test_a_large_float32_weight_is_not_tried_out(monkeypatch):
    monkeypatch.setattr(linear, "_seconds", None)
    large = torch.empty(linear.IN_CACHE // 1024 + 1, 256)
    assert type(choose_method(large)) is type(candidates(torch.float32)[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [OneDNNLinearMethod, TransposedLinearMethod, WidenedLinearMethod, PanelLinearMethod],
)
def test_the_oracle_holds_with_every_method(method, monkeypatch):
    """Shared prefixes, chunks, samples and preemption at once; the oracle multiplies plainly."""
    used = []
    monkeypatch.setattr(linear, "choose_method", lambda weight: used.append(1) or method())
    monkeypatch.setattr(linear, "_TILE", 7 * 32)  # several tiles, the last one smaller
    assert first_wrong_token(KVCacheManager) is None
    assert used
