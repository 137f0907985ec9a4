"""The engine on the device says what it says on the CPU, in float32, wherever a choice is clear."""

import pytest
import torch

from minivllm import BeamSearchParams, SamplingParams
from minivllm.embedded import (
    embedded_adapter_path,
    embedded_classifier_path,
    embedded_draft_path,
    embedded_embedder_path,
)
from minivllm.lora.request import LoRARequest
from minivllm.sampling_params import StructuredOutputsParams

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

CLEAR = 1e-3  # of log probabilities: a choice with less margin may fall either way
PROMPTS = ["The capital of France is", "Hello, my name is", "One, two, three, four,"]


def greedy(on_card, **kwargs):
    return SamplingParams(temperature=0, max_tokens=24 if on_card else 5, logprobs=2, **kwargs)


def compare(want, got, clear=CLEAR):
    """Equal tokens up to the first choice that the CPU finds close; returns how many were."""
    compared = 0
    for on_cpu, on_device in zip(want, got, strict=True):
        for one, other in zip(on_cpu.outputs, on_device.outputs, strict=True):
            for step, (token, logprobs) in enumerate(zip(one.token_ids, one.logprobs, strict=True)):
                best = sorted((known.logprob for known in logprobs.values()), reverse=True)
                if best[0] - best[1] < clear:
                    break
                assert other.token_ids[step] == token, (on_cpu.prompt, step)
                difference = abs(other.logprobs[step][token].logprob - logprobs[token].logprob)
                assert difference < clear
                compared += 1
    return compared


def run(llm, prompts, params, **kwargs):
    return llm.generate(prompts, params, use_tqdm=False, **kwargs)


def both(on_cpu, on_device, prompts, params, **kwargs):
    """Outputs of the CPU's engine, and of the device's with these arguments."""
    want = run(on_cpu(), prompts, params)
    llm = on_device(**kwargs)
    return want, run(llm, prompts, params), llm


WAYS = {
    "plain": {},
    "chunks": {"max_num_batched_tokens": 8, "enable_chunked_prefill": True},
    "preemption by recomputing": {"num_gpu_blocks_override": 4, "max_model_len": 48,
                                  "preemption_mode": "recompute"},
    "preemption by swapping": {"num_gpu_blocks_override": 4, "max_model_len": 48,
                               "preemption_mode": "swap"},
    "drafts from the text": {"speculative_config": {
        "method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}},
    "drafts from a model": {"speculative_config": {
        "method": "draft_model", "model": str(embedded_draft_path()), "num_speculative_tokens": 2}},
    "two ranks, tensor parallel": {"tensor_parallel_size": 2,
                                   "distributed_executor_backend": "together"},
    "two ranks, a pipeline": {"pipeline_parallel_size": 2,
                              "distributed_executor_backend": "together"},
    "blocks of one token": {"block_size": 1, "num_gpu_blocks_override": 300},
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_greedy_tokens_are_the_cpus(way, on_cpu, on_device, on_card):
    want, got, llm = both(on_cpu, on_device, PROMPTS, greedy(on_card), **WAYS[way])
    assert compare(want, got) >= (30 if on_card else 6)
    if way.startswith("preemption") and on_card:
        assert llm.llm_engine.scheduler.num_preemptions > 0


def test_a_cached_prompt_says_the_same(on_cpu, on_device, on_card):
    prompt = "The sun rises in the east and sets in the west, every day of the year. " * 2
    want = run(on_cpu(), [prompt], greedy(on_card))
    llm = on_device(enable_prefix_caching=True)
    for _ in range(2):
        got = run(llm, [prompt], greedy(on_card))
        assert compare(want, got) >= 3
    assert got[0].num_cached_tokens > 0


@pytest.mark.parametrize("n", [1, 3])
def test_seeds_draw_the_same_tokens(n, on_cpu, on_device, on_card):
    params = SamplingParams(
        n=n, temperature=0.8, top_p=0.9, top_k=20, seed=5, max_tokens=16 if on_card else 4,
        ignore_eos=True,
    )  # fmt: skip
    want, got, _ = both(on_cpu, on_device, PROMPTS[:2], params, block_size=4)
    for one, other in zip(want, got, strict=True):
        assert [c.token_ids for c in one.outputs] == [c.token_ids for c in other.outputs]


def test_beams_are_the_cpus(on_cpu, on_device, on_card):
    params = BeamSearchParams(beam_width=3, max_tokens=8 if on_card else 3)
    texts = []
    for make in (on_cpu, on_device):
        outputs = make(block_size=4).beam_search([{"prompt": PROMPTS[0]}], params, use_tqdm=False)
        texts.append([sequence.tokens for sequence in outputs[0].sequences])
    assert texts[0] == texts[1]


def test_grammars_bind_on_the_device(on_cpu, on_device, on_card):
    params = greedy(on_card, structured_outputs=StructuredOutputsParams(choice=["Paris", "Rome"]))
    want, got, _ = both(on_cpu, on_device, PROMPTS[:1], params)
    assert compare(want, got) >= 1
    text = got[0].outputs[0].text
    assert text
    assert any(name.startswith(text) for name in ("Paris", "Rome"))


def test_adapters_of_one_batch(on_cpu, on_device, on_card):
    """One request with an adapter, one with another, one without."""
    requests = [LoRARequest(name, number, str(embedded_adapter_path(name)))
                for number, name in enumerate(("pirate", "sql-lora"), 1)]  # fmt: skip
    adapters = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}
    outputs = [
        run(make(**adapters), PROMPTS, greedy(on_card), lora_request=[*requests, None])
        for make in (on_cpu, on_device)
    ]
    assert compare(*outputs) >= 6


@pytest.mark.parametrize(
    ("argument", "value"),
    [("quantization", "int4"), ("kv_cache_dtype", "int8_per_token_head"),
     ("kv_cache_dtype", "fp8"), ("kv_cache_dtype", "fp8_e5m2")],
)  # fmt: skip
def test_small_integers_are_the_cpus(argument, value, on_cpu, on_device, on_card):
    """Codes of weights are the CPU's; one of K or V may be rounded the other way."""
    outputs = [
        run(make(**{argument: value}), PROMPTS, greedy(on_card)) for make in (on_cpu, on_device)
    ]
    clear = CLEAR if argument == "quantization" else 0.05
    assert compare(*outputs, clear=clear) >= 6


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_16_bits_come_near(kind, on_cpu, on_device, on_card):
    """The first token's log probability, to the few digits that these numbers have."""
    if kind == "bfloat16" and on_card and torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("this card has no bfloat16")
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=2)
    want, got, _ = both(on_cpu, on_device, PROMPTS, params, dtype=kind)
    for one, other in zip(want, got, strict=True):
        token = one.outputs[0].token_ids[0]
        known, found = one.outputs[0].logprobs[0], other.outputs[0].logprobs[0]
        assert token in found
        assert abs(known[token].logprob - found[token].logprob) < 0.15


@pytest.mark.parametrize("model", [embedded_embedder_path, embedded_classifier_path])
def test_pooled_vectors_are_the_cpus(model, on_cpu, on_device):
    vectors = []
    for make in (on_cpu, on_device):
        llm = make(model=str(model()), runner="pooling")
        task = llm.embed if model is embedded_embedder_path else llm.classify
        outputs = task(PROMPTS, use_tqdm=False)
        field = "embedding" if model is embedded_embedder_path else "probs"
        vectors.append(torch.tensor([getattr(output.outputs, field) for output in outputs]))
    torch.testing.assert_close(vectors[1], vectors[0], rtol=1e-4, atol=1e-4)
