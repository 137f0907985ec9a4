"""SmolLM2's tokens and log probabilities are those of transformers on the dequantized weights."""

import copy
from dataclasses import replace

import pytest
import torch
from token_lines import SOURCES

from minivllm import LLM, SamplingParams
from minivllm.quantization.gguf import load_tokenizer
from minivllm.sampling.reference import choose

LENGTHS = (5, 7, 9, 12, 16, 22, 30, 40, 55, 75, 100, 135, 180, 250, 340, 480, 700, 1200, 2200, 4000)
CLEAR = 1e-3  # of two best logits: with less between them either may win
CLOSE = 1e-4  # of log probabilities
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


class Reference:
    """transformers' logits: a prompt is computed once, the outputs behind it as often as asked."""

    def __init__(self, model):
        self.model, self.prompts = model, {}

    @torch.inference_mode()
    def logits(self, prompt, output):
        """float32 ``[len(output), vocab]``: those that each token of the output is chosen from."""
        if (known := self.prompts.get(tuple(prompt))) is None:
            computed = self.model(torch.tensor([prompt]), use_cache=True, logits_to_keep=1)
            known = computed.logits[0], computed.past_key_values
            self.prompts[tuple(prompt)] = known
        first, cache = known
        if len(output) == 1:
            return first
        ids = torch.tensor([output[:-1]])
        rest = self.model(ids, past_key_values=copy.deepcopy(cache)).logits[0]
        return torch.cat((first, rest))


@pytest.fixture(scope="module")
def reference(dequantized):
    return Reference(dequantized)


def run(smollm2, prompts, params=GREEDY, **kwargs):
    """The engine, and what it makes of the prompts."""
    llm = LLM(str(smollm2), dtype="float32", max_model_len=LONGEST, **kwargs)
    prompts = [{"prompt_token_ids": prompt} for prompt in prompts]
    return llm, llm.generate(prompts, params, use_tqdm=False)


def hold(outputs, reference, seeds=None):
    """Compare each token, and the log probabilities that came with it."""
    num_clear = 0
    for request in outputs:
        prompt = request.prompt_token_ids
        for sample in request.outputs:
            logits = reference.logits(prompt, list(sample.token_ids))
            logprobs = logits.log_softmax(-1)
            for i, (token, found) in enumerate(zip(sample.token_ids, sample.logprobs, strict=True)):
                for other, logprob in found.items():
                    assert abs(logprob.logprob - logprobs[i, other]) < CLOSE
                if seeds is None:
                    best = logits[i].topk(2)
                    right, margin = best.indices[0], best.values[0] - best.values[1]
                else:
                    params, seed = seeds
                    before = list(sample.token_ids[:i])
                    right, margin = choose(
                        logits[i].tolist(), params, prompt, before, seed + sample.index, None
                    )
                if margin > CLEAR:
                    assert token == right
                    num_clear += 1
    return num_clear


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
