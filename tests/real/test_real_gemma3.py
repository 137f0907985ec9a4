"""Gemma 3's tokens and log probabilities are those of transformers on the dequantized weights."""

import pytest
from dequantized import load_dequantized
from token_lines import SOURCES
from transformers_tokens import Reference, hold

from minivllm import LLM, SamplingParams
from minivllm.quantization.gguf import load_tokenizer

LENGTHS = (
    10,
    12,
    15,
    19,
    24,
    31,
    40,
    52,
    68,
    88,
    115,
    150,
    195,
    255,
    330,
    430,
    560,
    900,
    1400,
    2000,
)
LONGEST = max(LENGTHS) + 64
GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, logprobs=3)


@pytest.fixture(scope="module")
def prompts(gemma3):
    """Token ids of prose, then code, then many languages, each prompt from a place of its own."""
    texts = [
        (SOURCES / f"{name}.txt").read_text("utf-8") for name in ("prose", "code", "languages")
    ]
    bos, *ids = load_tokenizer(gemma3).encode("".join(texts))
    last = len(ids) - LONGEST
    starts = [i * last // len(LENGTHS) for i in range(len(LENGTHS))]
    return [
        [bos, *ids[start : start + length - 1]]
        for start, length in zip(starts, LENGTHS, strict=True)
    ]


@pytest.fixture(scope="module")
def reference(gemma3):
    return Reference(load_dequantized(gemma3))


def run(llm, prompts):
    """Outputs of the engine for the prompts."""
    prompts = [{"prompt_token_ids": prompt} for prompt in prompts]
    return llm.generate(prompts, GREEDY, use_tqdm=False)


def test_prompts_in_one_piece(gemma3, prompts, reference):
    llm = LLM(
        "gemma3", dtype="float32", max_model_len=LONGEST, enable_chunked_prefill=False,
        max_num_batched_tokens=LONGEST,
    )  # fmt: skip
    assert hold(run(llm, prompts), reference) > 300


def test_prompts_in_chunks_and_cached(gemma3, prompts, reference):
    """By the file's name."""
    llm = LLM(str(gemma3), dtype="float32", max_model_len=LONGEST, max_num_batched_tokens=200)
    assert hold(run(llm, prompts), reference) > 300
    again = run(llm, prompts)
    assert all(output.num_cached_tokens for output in again if len(output.prompt_token_ids) > 32)
    assert hold(again, reference) > 300
