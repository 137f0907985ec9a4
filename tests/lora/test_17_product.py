"""The product with adapters against merged weights: its definition, compiled loops, and kernels."""

import pytest
import torch
from helpers import examples
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from minivllm.lora.layers import LoRALinearMethod, Rows
from minivllm.lora.metadata import LoRAMetadata
from minivllm.models.linear import Linear, UnquantizedLinearMethod
from minivllm.utils.numba_support import numba_obstacle

CPU = torch.device("cpu")


@pytest.fixture
def restored_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@st.composite
def cases(draw):
    """Sizes of a layer and its parts, the slot of each row, and a rank for each slot."""
    widths = draw(st.lists(st.sampled_from([1, 5, 16, 48, 64, 70, 130]), min_size=1, max_size=3))
    num_slots = draw(st.integers(1, 4))
    slots = draw(st.lists(st.integers(-1, num_slots - 1), min_size=1, max_size=30))
    ranks = draw(st.lists(st.integers(0, 20), min_size=num_slots, max_size=num_slots))
    return draw(st.sampled_from([1, 7, 64, 300])), widths, slots, ranks, draw(st.integers(0, 99))


def make(size, widths, slots, ranks, seed, dtype=torch.float32, max_rank=20):
    """A method with adapters, its layer, rows, their metadata, and what must come out, float64."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(shape, generator=generator).to(dtype)

    layer = Linear(size, sum(widths), bias=True)
    layer.weight = nn.Parameter(random(sum(widths), size), requires_grad=False)
    layer.bias = nn.Parameter(random(sum(widths)), requires_grad=False)
    parts = {str(i): width for i, width in enumerate(widths)}
    base = UnquantizedLinearMethod()
    method = LoRALinearMethod(base, layer, parts, len(ranks), max_rank, dtype, Rows())
    merged = []
    for slot, rank in enumerate(ranks):
        whole = {name: (random(max_rank, size), random(n, max_rank)) for name, n in parts.items()}
        method.set_slot(slot, whole)  # it is gone when the next one comes
        names = [name for i, name in enumerate(parts) if rank and (i + slot) % 3 < 2]
        weights = {name: (random(rank, size), random(parts[name], rank)) for name in names}
        method.set_slot(slot, weights)
        weight, begin = layer.weight.double().clone(), 0
        for name, width in parts.items():
            if name in weights:
                a, b = weights[name]
                weight[begin : begin + width] += b.double() @ a.double()
            begin += width
        merged.append(weight)
    merged.append(layer.weight.double())  # of slot -1
    x = random(len(slots), size)
    want = torch.stack([merged[s] @ x[i].double() for i, s in enumerate(slots)])
    metadata = LoRAMetadata.build(slots, [1] * len(slots), CPU)
    return method, layer, x, metadata, want + layer.bias.double()


def check(got, want, x):
    scale = 1e-5 * x.shape[1] ** 0.5 * 20
    assert torch.allclose(got.double(), want, atol=scale, rtol=1e-4)


@given(case=cases())
@examples(60)
def test_each_row_gets_its_own_adapter(case):
    method, layer, x, metadata, want = make(*case)
    method.rows.metadata = metadata
    y = method.apply(layer, x)
    check(y, want, x)
    without = [i for i, slot in enumerate(case[2]) if slot < 0]
    assert torch.equal(y[without], method.base.apply(layer, x)[without])


@pytest.mark.skipif(numba_obstacle() is not None, reason="needs numba")
@given(case=cases())
@examples(60)
def test_compiled_loops_are_the_definition(case):
    from minivllm.cpu.lora import add_adapters_to

    method, layer, x, metadata, want = make(*case)
    method.rows.metadata = metadata
    product = add_adapters_to(method.base.array_product(layer, torch.float32), method)
    check(torch.from_numpy(product(x.numpy())), want, x)


@pytest.mark.skipif(numba_obstacle() is not None, reason="needs numba")
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_loops_widen_16_bits_and_share_work(dtype, num_threads, restored_threads):
    from minivllm.cpu.lora import WORTH_SHARING, add_adapters_to

    slots = [i % 4 - 1 for i in range(150)]  # enough for two threads
    method, layer, x, metadata, _ = make(300, [256, 70], slots, [20, 16, 3], 0, dtype)
    layer.weight.data, layer.bias.data = layer.weight.float(), layer.bias.float()
    want = method.base.apply(layer, x.float())
    method.add_adapters(want, x.float(), metadata)
    method.rows.metadata = metadata
    assert len(metadata.rows) * (method.a[0].numel() + method.b[0].numel()) > WORTH_SHARING
    torch.set_num_threads(num_threads)
    product = add_adapters_to(method.base.array_product(layer, torch.float32), method)
    check(torch.from_numpy(product(x.float().numpy())), want.double(), x)


@given(case=cases())
@examples(8)
def test_kernels_are_the_definition(case):
    kernels = pytest.importorskip("minivllm.lora.kernels")
    method, layer, x, metadata, want = make(*case)
    if metadata is None:
        return
    y = method.base.apply(layer, x)
    method.add_in_kernels(y, x, metadata)
    check(y, want, x)
    assert kernels.lora_shrink(x, method.a, metadata).shape == (
        len(metadata.rows),
        method.a.shape[2],
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_kernels_multiply_16_bits(dtype):
    pytest.importorskip("minivllm.lora.kernels")
    method, layer, x, metadata, _ = make(64, [48, 70], [0, 1, -1, 1, 0], [20, 3], 1, dtype)
    y = method.base.apply(layer, x)
    twin = y.clone()
    method.add_in_kernels(y, x, metadata)
    method.add_adapters(twin, x, metadata)
    # each rounds once more than the other, at sizes around 50
    unit = torch.finfo(dtype).eps
    assert torch.allclose(y.float(), twin.float(), rtol=2 * unit, atol=100 * unit)


def test_a_tile_has_rows_of_one_slot():
    metadata = LoRAMetadata.build([3, 0, 3], [16, 1, 2], CPU)
    assert metadata.tiles.tolist() == [[0, 0, 1], [3, 1, 17], [3, 17, 19]]


def test_a_step_without_adapters_has_no_metadata():
    assert LoRAMetadata.build([-1, -1], [3, 1], CPU) is None
    some = LoRAMetadata.build([2, -1, 0, 2], [2, 3, 1, 1], CPU)
    assert some.rows.tolist() == [5, 0, 1, 6]
    assert some.slots.tolist() == [0, 2]
    assert some.starts.tolist() == [0, 1, 4]
