"""Ranks that divide a model say what one process says: with every kind of request and step."""

import random
from dataclasses import replace

import pytest
import torch
from helpers import AT_NIGHT, make_llm, run_and_compare, workers_of, workload
from small_models import CONFIGS, make_model

from minivllm import LLM, SamplingParams
from minivllm.embedded import embedded_draft_path
from minivllm.models.loader import load_config, load_model
from minivllm.sampling_params import BeamSearchParams, StructuredOutputsParams
from minivllm.trace.records import Verified

SMALL = ("gpt2", "opt", "llama-grouped-tied")  # the last has two heads of K and V
STEPS = {  # every one in small chunks, with preemptions
    "recomputed": {"preemption_mode": "recompute"},
    "swapped": {"preemption_mode": "swap", "enable_prefix_caching": False},
}


def together(tp=1, pp=1):
    sizes = {"tensor_parallel_size": tp, "pipeline_parallel_size": pp}
    return sizes | {"distributed_executor_backend": "together"}


def watch(llm):
    """Digests of the logits of every step, of each rank that has any."""
    found = []
    for worker in workers_of(llm):
        model = worker.model
        if model.lm_head is None:  # of an earlier stage
            continue
        found.append(digests := [])

        def digested(hidden, digests=digests, compute_logits=model.compute_logits):
            logits = compute_logits(hidden)
            digests.append(hash(logits.numpy().tobytes()))
            return logits

        model.compute_logits = digested
    return found


@pytest.fixture(scope="module", params=SMALL)
def small(request, tmp_path_factory):
    """A small random model's directory, and the model in one piece."""
    directory = tmp_path_factory.mktemp(request.param)
    family, changes, _ = CONFIGS[request.param]
    make_model(family, **changes).save_pretrained(directory)
    whole = load_model(directory, load_config(directory), torch.float32, torch.device("cpu"))
    return directory, whole


@pytest.mark.combinations(2)
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (4, 1), (1, 2), (2, 2)])
def test_every_parameter_equals_the_oracle(small, tp, pp, steps):
    directory, whole = small
    llm = make_llm(
        directory, block_size=4, max_model_len=40, num_gpu_blocks_override=15, swap_space=0.001,
        max_num_batched_tokens=13, **STEPS[steps], **together(tp, pp),
    )  # fmt: skip
    digests, rng = watch(llm), random.Random(5)
    prompts, params = workload(rng, 24, 90, 30)
    penalties = {"presence_penalty": 1.5, "frequency_penalty": -0.5, "repetition_penalty": 1.3}
    for index in range(0, 24, 3):
        params[index] = replace(params[index], **penalties)
    compared, exempted = run_and_compare(llm, prompts, params, whole)
    assert llm.llm_engine.scheduler.num_preemptions > 0
    assert exempted < compared / 10
    assert digests[0]
    assert digests == [digests[0]] * tp


@pytest.mark.parametrize("size", [2, 4])
def test_a_draft_model_is_divided_or_whole_on_each_rank(tiny_qwen2, tmp_path, size):
    """One with two heads cannot be divided by four."""
    make_model("Llama", num_attention_heads=2, num_key_value_heads=1).save_pretrained(tmp_path)
    config = {"method": "draft_model", "model": str(tmp_path), "num_speculative_tokens": 3}
    whole = load_model(tiny_qwen2, load_config(tiny_qwen2), torch.float32, torch.device("cpu"))
    llm = make_llm(
        tiny_qwen2, block_size=4, max_model_len=40, num_gpu_blocks_override=15, swap_space=0.001,
        max_num_batched_tokens=13, speculative_config=config, trace=True, **together(size),
    )  # fmt: skip
    num_heads = {worker.draft_model.config.num_heads for worker in workers_of(llm)}
    assert num_heads == {1 if size == 2 else 2}
    digests = watch(llm)
    compared, exempted = run_and_compare(llm, *workload(random.Random(3), 24, 90, 30), whole)
    assert exempted < compared / 10
    assert digests == [digests[0]] * size
    assert list(llm.llm_engine.trace.of(Verified))


TEXTS = ["Once there was a small", "The river runs", "two three four two three four two three"]
GREEDY = SamplingParams(temperature=0, max_tokens=14, ignore_eos=True)
REQUESTS = {
    "greedy": GREEDY,
    "penalties": SamplingParams(
        temperature=0.8, seed=4, max_tokens=14, presence_penalty=1.0, repetition_penalty=1.2
    ),
    "samples": SamplingParams(n=3, seed=7, max_tokens=14, top_p=0.9, logprobs=1),
    "beams": BeamSearchParams(beam_width=3, max_tokens=10),
    "a regex": SamplingParams(
        temperature=0, max_tokens=14,
        structured_outputs=StructuredOutputsParams(regex=r"[a-z]{3,6}( [a-z]{2,5}){2}"),
    ),
    "a choice": SamplingParams(
        seed=1, max_tokens=14, structured_outputs=StructuredOutputsParams(choice=["yes", "no"])
    ),
    "prompt logprobs": SamplingParams(temperature=0, max_tokens=3, prompt_logprobs=2),
}  # fmt: skip
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
DRAFT = {"method": "draft_model", "model": str(embedded_draft_path()), "num_speculative_tokens": 3}
WAYS = {
    "compiled layers": {},
    "modules": {"enforce_eager": True, "attention_backend": "reference"},
    "n-gram drafts": {"speculative_config": NGRAM},
    "a draft model": {"speculative_config": DRAFT},
}


LAYOUTS = [(4, 1), (1, 3), (2, 2), (2, 1), (1, 2), (1, 5)]
SOME_LAYOUTS = LAYOUTS if AT_NIGHT else LAYOUTS[:3]


def texts_and_tokens(**settings):
    """Tokens of every request to the embedded model, all in one batch, and the engine."""
    llm = LLM(num_gpu_blocks_override=300, max_num_batched_tokens=24, max_model_len=100, **settings)
    digests, engine, tokens = watch(llm), llm.llm_engine, {}
    for name, params in REQUESTS.items():
        for number, text in enumerate(TEXTS):
            engine.add_request(f"{name} {number}", text, params)
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                tokens[output.request_id] = [one.token_ids for one in output.outputs]
        engine.check_integrity()
    assert digests == [digests[0]] * len(digests)
    return tokens


@pytest.mark.parametrize("way", WAYS)
def test_the_embedded_model_says_what_one_process_says(way):
    """Its vocabulary of 3,157 tokens is padded, so that each rank has as many."""
    one = texts_and_tokens(**WAYS[way])
    assert len(one) == len(REQUESTS) * len(TEXTS)
    for tp, pp in SOME_LAYOUTS:
        if way != "a draft model" or pp == 1:
            assert texts_and_tokens(**WAYS[way], **together(tp, pp)) == one


@pytest.mark.parametrize("settings", [{"dtype": "bfloat16"}, {"kv_cache_dtype": "fp8"}], ids=str)
def test_ranks_agree_in_16_and_8_bits_too(settings):
    """Their tokens may differ from one process's, where a sum is rounded in another order."""
    assert len(texts_and_tokens(**settings, **together(2))) == len(REQUESTS) * len(TEXTS)
