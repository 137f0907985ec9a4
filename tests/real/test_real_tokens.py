"""SmolLM2's tokens and log probabilities are those of transformers on the dequantized weights."""

from dataclasses import replace

import pytest
from token_lines import SOURCES
from transformers_tokens import Reference, hold

from minivllm import LLM, SamplingParams
from minivllm.quantization.gguf import load_tokenizer

LENGTHS = (5, 7, 9, 12, 16, 22, 30, 40, 55, 75, 100, 135, 180, 250, 340, 480, 700, 1200, 2200, 4000)
LONGEST = max(LENGTHS) + 64
GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, logprobs=3)


@pytest.fixture(scope="module")
def prompts(smollm2):
    """Token ids of prose, then code, then many languages, each prompt from a place of its own."""
    texts = [
        (SOURCES / f"{name}.txt").read_text("utf-8") for name in ("prose", "code", "languages")
    ]
    ids = load_tokenizer(smollm2).encode("".join(texts))
    last = len(ids) - LONGEST
    return [ids[i * last // 20 : i * last // 20 + length] for i, length in enumerate(LENGTHS)]


@pytest.fixture(scope="module")
def reference(dequantized):
    return Reference(dequantized)


def run(smollm2, prompts, params=GREEDY, **kwargs):
    """The engine, and what it makes of the prompts."""
    llm = LLM(str(smollm2), dtype="float32", max_model_len=LONGEST, **kwargs)
    prompts = [{"prompt_token_ids": prompt} for prompt in prompts]
    return llm, llm.generate(prompts, params, use_tqdm=False)


def counter(llm, name):
    return sum(metric.value for metric in llm.get_metrics() if metric.name == f"vllm:{name}")


def test_prompts_in_one_piece(smollm2, prompts, reference):
    _, outputs = run(smollm2, prompts, enable_chunked_prefill=False, max_num_batched_tokens=LONGEST)
    assert hold(outputs, reference) > 300


def test_prompts_in_chunks(smollm2, prompts, reference):
    _, outputs = run(smollm2, prompts, max_num_batched_tokens=200)
    assert hold(outputs, reference) > 300


def test_prompts_that_are_cached(smollm2, prompts, reference):
    llm, _ = run(smollm2, prompts)
    again = llm.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts], GREEDY, use_tqdm=False
    )
    assert [it.num_cached_tokens for it in again] == [(n - 1) // 16 * 16 for n in LENGTHS]
    assert hold(again, reference) > 300


def test_requests_that_are_preempted(smollm2, prompts, reference):
    params = replace(GREEDY, max_tokens=40)  # two or three more blocks for each
    llm, outputs = run(smollm2, prompts, params, num_gpu_blocks_override=LONGEST // 16 + 2)
    assert counter(llm, "num_preemptions") > 0
    assert hold(outputs, reference) > 700


def test_drafts_of_ngrams(smollm2, prompts, reference):
    speculative = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}
    llm, outputs = run(smollm2, prompts, speculative_config=speculative)
    assert counter(llm, "spec_decode_num_accepted_tokens") > 20
    assert hold(outputs, reference) > 300


def test_four_samples(smollm2, prompts, reference):
    params = SamplingParams(n=4, seed=7, max_tokens=4, ignore_eos=True, logprobs=3)
    _, outputs = run(smollm2, prompts, params)
    assert hold(outputs, reference, seeds=(params, 7)) > 200  # others are near an edge
