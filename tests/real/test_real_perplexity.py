"""Perplexity of a text under SmolLM2: of each dtype and KV cache, and after `minivllm quantize`."""

import math

import pytest
import torch
from token_lines import SOURCES
from typer.testing import CliRunner

from minivllm import LLM, SamplingParams
from minivllm.cli import app
from minivllm.lab.quantize.measured import perplexities

CACHES = {  # name in the recorded table -> arguments, and the most times float32's perplexity
    "bfloat16": ({"dtype": "bfloat16"}, 1.02),
    "int8_per_token_head": ({"kv_cache_dtype": "int8_per_token_head"}, 1.02),
    "fp8": ({"kv_cache_dtype": "fp8"}, 1.05),
    "fp8_e5m2": ({"kv_cache_dtype": "fp8_e5m2"}, math.inf),  # only recorded
}
WEIGHTS = {  # of the command
    "int8": ("rtn", 8), "int4": ("rtn", 4), "GPTQ": ("gptq", 4), "AWQ": ("awq", 4),
}  # fmt: skip
GROUP = 64  # divides the model's widths, 576 and 1536


def perplexity(model, **kwargs):
    """e to the mean surprise of each token of the text but the first."""
    llm = LLM(str(model), **{"dtype": "float32", "max_model_len": 4096, **kwargs})
    text = (SOURCES / "prose.txt").read_text(encoding="utf-8")
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    (output,) = llm.generate(text, params, use_tqdm=False)
    pairs = zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)
    logprobs = [found[token].logprob for token, found in pairs if found is not None]
    assert len(logprobs) == len(output.prompt_token_ids) - 1 > 2000
    return math.exp(-sum(logprobs) / len(logprobs))


@pytest.fixture(scope="module")
def of_float32(smollm2):
    return perplexity(smollm2)


@torch.inference_mode()
def test_float32_has_transformers_perplexity(smollm2, dequantized, of_float32):
    from minivllm.quantization.gguf import load_tokenizer

    text = (SOURCES / "prose.txt").read_text(encoding="utf-8")
    ids = torch.tensor([load_tokenizer(smollm2).encode(text)])
    loss = dequantized(ids, labels=ids).loss
    assert of_float32 == pytest.approx(loss.exp().item(), rel=1e-4)
    assert of_float32 == pytest.approx(perplexities()["caches"]["float32"], rel=1e-3)


@pytest.mark.parametrize("name", CACHES)
def test_a_dtype_or_a_cache_costs_little(name, smollm2, of_float32):
    kwargs, most = CACHES[name]
    found = perplexity(smollm2, **kwargs)
    assert found <= most * of_float32
    assert found == pytest.approx(perplexities()["caches"][name], rel=0.005)


@pytest.mark.parametrize("name", WEIGHTS)
def test_quantized_weights_have_the_recorded_perplexity(name, float_directory, tmp_path):
    method, bits = WEIGHTS[name]
    words = ["quantize", str(float_directory), str(tmp_path / "out"), "--method", method]
    done = CliRunner().invoke(app, [*words, "--bits", str(bits), "--group", str(GROUP)])
    assert done.exit_code == 0, done.output
    found = perplexity(tmp_path / "out")
    assert found == pytest.approx(perplexities()["weights"][name], rel=0.01)
