"""Perplexity of a text under SmolLM2: of dtypes and KV caches, and after `minivllm quantize`."""

import math
from pathlib import Path

from token_lines import SOURCES
from typer.testing import CliRunner

from minivllm import LLM, SamplingParams
from minivllm.cli import app

CACHES = {  # name in the recorded table -> arguments, and the most times float32's perplexity
    "float32": ({}, 1),
    "bfloat16": ({"dtype": "bfloat16"}, 1.02),
    "int8_per_token_head": ({"kv_cache_dtype": "int8_per_token_head"}, 1.02),
    "fp8": ({"kv_cache_dtype": "fp8"}, 1.05),
    "fp8_e5m2": ({"kv_cache_dtype": "fp8_e5m2"}, math.inf),  # only recorded
}
WEIGHTS = {  # of the command: method, bits, texts for calibration
    "int8": ("rtn", 8, 1), "int4": ("rtn", 4, 1), "GPTQ": ("gptq", 4, 32), "AWQ": ("awq", 4, 2),
}  # fmt: skip
GROUP = 64  # divides the model's widths, 576 and 1536


def read_text():
    """The text, some 2,800 tokens."""
    return (SOURCES / "prose.txt").read_text(encoding="utf-8")


def perplexity(model, **kwargs):
    """e to the mean surprise of each token of the text but the first."""
    llm = LLM(str(model), **{"dtype": "float32", "max_model_len": 4096, **kwargs})
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    (output,) = llm.generate(read_text(), params, use_tqdm=False)
    pairs = zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)
    logprobs = [found[token].logprob for token, found in pairs if found is not None]
    assert len(logprobs) == len(output.prompt_token_ids) - 1 > 2000
    return math.exp(-sum(logprobs) / len(logprobs))


def quantize(source: Path, target: Path, name: str) -> None:
    """Run the command, as a row of WEIGHTS says."""
    method, bits, num_texts = WEIGHTS[name]
    words = ["quantize", str(source), str(target), "--method", method, "--bits", str(bits)]
    words += ["--group", str(GROUP), "--num-texts", str(num_texts)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
