"""The seam behind each product: shaken by a seed, equal results alike; without one it is gone."""

import os
import subprocess
import sys
from functools import cache

import numpy as np
import pytest
import torch

from minivllm import envs
from minivllm.models import product
from minivllm.models.linear import UnquantizedLinearMethod

# A product by each method, run with a seed and without: rows 0 and 2 of x are alike.
EACH_METHOD = """
import sys
import numpy as np, torch
from minivllm.cpu import linear
from minivllm.cpu.gemm import int8_panels, quantized_panels
from minivllm.models.linear import Linear, UnquantizedLinearMethod
from minivllm.quantization.compressed_tensors import Int8Scheme
from minivllm.quantization.base_config import FloatScheme, QuantizedLinearMethod, QuantizedPart

rng = torch.Generator().manual_seed(0)
weight = torch.randn(40, 64, generator=rng)
x = torch.randn(3, 64, generator=rng)
x[2] = x[0]
found = {}
definition = QuantizedLinearMethod({"a": QuantizedPart("a", FloatScheme(), slice(0, 40))},
                                   {"a.weight": weight})
methods = [UnquantizedLinearMethod(), linear.OneDNNLinearMethod(), linear.PanelLinearMethod(),
           linear.TransposedLinearMethod(), linear.WidenedLinearMethod(), definition]
with torch.inference_mode():
    for method in methods:
        layer = Linear(64, 40, True, method)
        layer.bias.fill_(0.5)
        next(p for name, p in layer.named_parameters() if name != "bias").copy_(weight)
        method.process_weights_after_loading(layer)
        found[type(method).__name__] = layer(x)
        found[type(method).__name__ + " of arrays"] = torch.from_numpy(
            method.array_product(layer, torch.float32)(x.numpy()))
    q = (weight * 40).clamp(-127, 127).to(torch.int8)
    packed = quantized_panels.pack(q, torch.full((40, 1), 0.025))
    found["quantized panels"] = quantized_panels.multiply(x, packed, None, 40)
    found["int8 panels"] = int8_panels.multiply(x, packed, None, 40)
    half = Linear(64, 40, False)
    half.weight = torch.nn.Parameter(weight.bfloat16())
    found["bfloat16"] = half(x.bfloat16()).float()
np.savez(sys.argv[1], **{name: array.numpy() for name, array in found.items()})
"""


@pytest.fixture(scope="module")
def products(tmp_path_factory):
    """Results of each method with a seed, or None."""

    @cache
    def run(seed):
        path = tmp_path_factory.mktemp("products") / "found.npz"
        env = os.environ | {"MINIVLLM_SHAKE_SEED": "" if seed is None else str(seed)}
        subprocess.run([sys.executable, "-c", EACH_METHOD, path], env=env, check=True)
        return dict(np.load(path))

    return run


@pytest.mark.slow
def test_each_product_is_shaken_once_and_equal_rows_stay_equal(products):
    plain, one, two = products(None), products(1), products(2)
    assert plain.keys() == one.keys() == two.keys()
    assert len(plain) == 15
    for name, right in plain.items():
        if name == "bfloat16":
            assert np.array_equal(right, one[name]), "it has no such bits"
            continue
        for shaken in (one[name], two[name]):
            share = shaken.astype(np.float64) / right - 1
            assert np.abs(np.abs(share) - 1e-6).max() < 2e-7, name
            assert 0.2 < (share > 0).mean() < 0.8, name
            same = right[0] == right[2]  # alike to the last bit, in any place of a tile
            assert np.array_equal(shaken[0, same], shaken[2, same]), name
            assert same.any(), name
        assert not np.array_equal(one[name], two[name]), name


@pytest.mark.skipif(product.SHAKE_SEED is not None, reason="everything is shaken")
def test_without_a_seed_there_is_no_further_function():
    def multiply(x):
        return x

    assert product.returns_product(multiply) is multiply
    assert not hasattr(UnquantizedLinearMethod.apply, "__wrapped__")


def test_what_is_recorded_or_differentiated_does_not_see_it(monkeypatch):
    """A recorder of operations hears of none; a result with a gradient stays as it is."""
    from torch.utils._python_dispatch import TorchDispatchMode

    heard = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            heard.append(function)
            return function(*args, **(kwargs or {}))

    monkeypatch.setattr(product, "SHAKE_SEED", 3)
    result, trained = torch.ones(50), torch.ones(5, requires_grad=True) * 2
    with Recorder():
        product.shake(result)
        product.shake(trained)
    assert not heard
    assert not torch.equal(result, torch.ones(50))
    assert torch.equal(trained, torch.full((5,), 2.0))


@pytest.mark.parametrize("text", ["-1", "x", "1.5", str(2**32), "²"])
def test_a_seed_that_is_none_is_refused(monkeypatch, text):
    monkeypatch.setenv("MINIVLLM_SHAKE_SEED", text)
    with pytest.raises(ValueError, match=r"MINIVLLM_SHAKE_SEED must be a whole number below"):
        envs.shake_seed()
    monkeypatch.setenv("MINIVLLM_SHAKE_SEED", "0")
    assert envs.shake_seed() == 0
