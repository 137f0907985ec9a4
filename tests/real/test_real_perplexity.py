"""Perplexity is transformers', costs little in fewer bits, and is what the chapters print."""

import pytest
import torch
from perplexity import CACHES, WEIGHTS, perplexity, quantize, read_text

from minivllm.lab.quantize.measured import perplexities
from minivllm.quantization.gguf import load_tokenizer


@pytest.fixture(scope="module")
def of_float32(smollm2):
    return perplexity(smollm2)


@torch.inference_mode()
def test_float32_has_transformers_perplexity(smollm2, dequantized, of_float32):
    ids = torch.tensor([load_tokenizer(smollm2).encode(read_text())])
    loss = dequantized(ids, labels=ids).loss
    assert of_float32 == pytest.approx(loss.exp().item(), rel=1e-4)


@pytest.mark.parametrize("name", CACHES)
def test_a_dtype_or_a_cache_costs_little(name, smollm2, of_float32):
    kwargs, most = CACHES[name]
    found = perplexity(smollm2, **kwargs) if kwargs else of_float32
    assert found <= most * of_float32
    assert found == pytest.approx(perplexities()["caches"][name], rel=0.005)


@pytest.mark.parametrize("name", WEIGHTS)
def test_quantized_weights_have_the_recorded_perplexity(name, float_directory, tmp_path):
    quantize(float_directory, tmp_path / "out", name)
    found = perplexity(tmp_path / "out")
    assert found == pytest.approx(perplexities()["weights"][name], rel=0.01)
