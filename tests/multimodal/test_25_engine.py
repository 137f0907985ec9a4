"""The engine on prompts with pictures: whatever is done to them, the tokens are the oracle's."""

import random
from dataclasses import replace

import multimodal_models as small
import numpy as np
import pytest
import torch
from helpers import CLEAR, make_llm, workers_of
from PIL import Image

from minivllm import SamplingParams
from minivllm.engine.input_processor import EngineInput
from minivllm.lab import oracle
from minivllm.models.loader import load_config, load_encoder, load_model

CPU = torch.device("cpu")
USUAL = {"block_size": 4, "max_model_len": 120, "num_gpu_blocks_override": 200}
SMALL_POOL = {"num_gpu_blocks_override": 24, "max_model_len": 90}
GRIDS = [(1, 4, 6), (1, 2, 8), (2, 4, 4)]
PICTURES = ["sun", "moon", "cat", "dog"]


@pytest.fixture(scope="module")
def llava(tmp_path_factory):
    directory = tmp_path_factory.mktemp("llava")
    theirs = small.make_llava("siglip", "qwen2")
    return theirs, small.save(theirs, directory)


@pytest.fixture(scope="module")
def qwen2_vl(tmp_path_factory):
    directory = tmp_path_factory.mktemp("qwen2-vl")
    theirs = small.make_qwen2_vl()
    return theirs, small.save_qwen2_vl(theirs, directory)


def add(llm, request_id, prompt, params):
    """Add a request whose items have been processed."""
    token_ids, features = prompt
    engine = llm.llm_engine
    given = EngineInput(list(token_ids), mm_features=features)
    request = engine.input_processor.make_request(request_id, given, params)
    engine.submit(request)
    return request


def run(llm, prompts, params):
    """Run prompts step by step. Returns requests and outputs by id."""
    engine = llm.llm_engine
    requests = {str(i): add(llm, str(i), p, params[i]) for i, p in enumerate(prompts)}
    outputs = {}
    while engine.has_unfinished_requests():
        outputs |= {output.request_id: output for output in engine.step()}
        engine.check_integrity()
    pool = engine.scheduler.kv_manager.block_pool
    assert pool.num_free_blocks == pool.num_usable_blocks, "something is left allocated"
    return requests, outputs


def assert_are_those_of_the_oracle(directory, requests, outputs, at_least=20):
    config = load_config(directory)
    model = load_model(directory, config, torch.float32, CPU)
    encoder = load_encoder(directory, config, torch.float32, CPU)
    compared = 0
    for request_id, request in requests.items():
        for sample in outputs[request_id].outputs:
            want = oracle.run(model, request, 120, sample.index, encoder=encoder)
            unclear = next((i for i, m in enumerate(want.margins) if m < CLEAR), None)
            upto = len(want.token_ids) if unclear is None else unclear
            assert sample.token_ids[:upto] == want.token_ids[:upto], request_id
            compared += upto
    assert compared >= at_least


def draw(seed, kind="llava", num_prompts=6):
    """Prompts of 0 to 3 pictures, some of which begin alike, and their parameters."""
    rng = random.Random(seed)
    prompts, params = [], []
    for number in range(num_prompts):
        parts = [11, 12, 13] if number % 2 else rng.choices(range(90), k=rng.randint(1, 5))
        for _ in range(number % 4):
            item = (
                rng.choice(PICTURES)
                if kind == "llava"
                else rng.choice([(1, 4, 6), (1, 2, 8), (2, 4, 4)])
            )
            parts += [item, *rng.choices(range(90), k=rng.randint(1, 4))]
        make = small.with_pictures if kind == "llava" else small.with_grids
        prompts.append(make([*parts, 5]))
        params.append(SamplingParams(temperature=0, max_tokens=rng.randint(2, 8), ignore_eos=True))
    return prompts, params


WAYS = {
    "usual": {},
    "small-budget": {"max_num_batched_tokens": 7, "max_num_encoder_input_tokens": 16},
    "cache-of-one": {"encoder_cache_size": 24, "max_num_encoder_input_tokens": 24},
    "whole-pictures": {"max_num_batched_tokens": 30, "disable_chunked_mm_input": True},
    "recompute": {**SMALL_POOL, "enable_prefix_caching": False},
    "swap": {**SMALL_POOL, "preemption_mode": "swap", "swap_space": 0.01},
    "two-plans": {"async_scheduling": True, "max_num_batched_tokens": 24},
    "eager": {"enforce_eager": True, "attention_backend": "reference"},
    "ranks": {"tensor_parallel_size": 2, "distributed_executor_backend": "together"},
    "drafts": {"speculative_config": {
        "method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2,
        "prompt_lookup_min": 1}},
}  # fmt: skip


QUICK = ("small-budget", "two-plans", "ranks")


def ways(names):
    """Names of ways; all but some are slow."""
    return [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in names]


@pytest.mark.parametrize("way", ways(WAYS))
def test_llava_says_what_the_oracle_says(way, llava):
    _, directory = llava
    llm = make_llm(directory, **USUAL | WAYS[way])
    prompts, params = draw(seed=9)
    requests, outputs = run(llm, prompts, params)
    assert_are_those_of_the_oracle(directory, requests, outputs)
    if way in ("recompute", "swap"):
        assert llm.llm_engine.scheduler.num_preemptions > 0


@pytest.mark.parametrize(
    "way", ["usual", "small-budget", "recompute", "swap", "two-plans", "drafts"]
)
def test_qwen2_vl_says_what_the_oracle_says(way, qwen2_vl):
    """Positions of three parts in chunks, behind a hit, after a preemption."""
    _, directory = qwen2_vl
    llm = make_llm(directory, **USUAL | WAYS[way])
    prompts, params = draw(seed=9, kind="qwen2-vl", num_prompts=8)
    requests, outputs = run(llm, prompts, params)
    assert_are_those_of_the_oracle(directory, requests, outputs)


def greedy(logits_of, theirs, prompt, max_tokens):
    """transformers' greedy tokens as long as the choice is clear."""
    token_ids, features = prompt
    ids = list(token_ids)
    for _ in range(max_tokens):
        best = logits_of(theirs, ids, features).topk(2)
        if best.values[0] - best.values[1] < CLEAR:
            break
        ids.append(int(best.indices[0]))
    return ids[len(token_ids) :]


@pytest.mark.parametrize("kind", ["llava", "qwen2-vl"])
def test_tokens_and_logprobs_are_those_of_transformers(kind, llava, qwen2_vl):
    theirs, directory = llava if kind == "llava" else qwen2_vl
    logits_of = small.their_logits if kind == "llava" else small.their_grid_logits
    prompts, params = draw(seed=4, kind=kind)
    params = [replace(one, logprobs=3) for one in params]
    llm = make_llm(directory, **USUAL, max_num_batched_tokens=25)
    _, outputs = run(llm, prompts, params)
    for number, prompt in enumerate(prompts):
        found = outputs[str(number)].outputs[0]
        want = greedy(logits_of, theirs, prompt, params[number].max_tokens)
        assert found.token_ids[: len(want)] == want
        logprobs = logits_of(theirs, *prompt).log_softmax(-1)
        for token_id, logprob in found.logprobs[0].items():
            assert logprob.logprob == pytest.approx(float(logprobs[token_id]), abs=1e-4)


def test_samples_share_their_pictures(llava):
    """They begin behind the prompt; one that is preempted computes it again, pictures included."""
    _, directory = llava
    pool = {"num_gpu_blocks_override": 22, "max_model_len": 60}
    llm = make_llm(directory, **USUAL | pool)
    prompts = [small.with_pictures([3, name, 4, 5]) for name in PICTURES[:2]]
    params = [SamplingParams(n=3, temperature=1.0, seed=i, max_tokens=15) for i in range(2)]
    requests, outputs = run(llm, prompts, params)
    assert_are_those_of_the_oracle(directory, requests, outputs)
    assert llm.llm_engine.scheduler.num_preemptions > 0


def encoder_runner(llm):
    return workers_of(llm)[0].model_runner.encoder_runner


def test_the_tower_runs_once_for_each_picture_and_never_for_a_repeat(llava):
    _, directory = llava
    llm = make_llm(directory, **USUAL)
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    prompts = [
        small.with_pictures([number, *random.Random(number).sample(PICTURES, number % 4), 7])
        for number in range(9)
    ]
    run(llm, prompts, [params] * len(prompts))
    named = {feature.identifier for _, features in prompts for feature in features}
    assert encoder_runner(llm).num_encoded == len(named) == 4
    for token_ids, features in prompts:
        _, outputs = run(llm, [(token_ids, features)], [params])
        assert outputs["0"].num_cached_tokens == (len(token_ids) - 1) // 4 * 4
    assert encoder_runner(llm).num_encoded == 4


def test_each_rank_has_the_whole_tower(llava):
    _, directory = llava
    llm = make_llm(directory, **USUAL | WAYS["ranks"])
    params = SamplingParams(temperature=0, max_tokens=3)
    run(llm, [small.with_pictures([3, "sun", 4])], [params])
    runners = [worker.model_runner.encoder_runner for worker in workers_of(llm)]
    assert [runner.num_encoded for runner in runners] == [1, 1]
    sizes = [sum(p.nbytes for p in runner.encoder.parameters()) for runner in runners]
    assert sizes[0] == sizes[1]


def test_a_failed_step_is_computed_again_pictures_included(llava, monkeypatch):
    _, directory = llava
    llm = make_llm(directory, **USUAL | {"max_num_batched_tokens": 9})
    engine = llm.llm_engine
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    prompts = [small.with_pictures([3, "sun", 4, 5]), small.with_pictures([6, "moon", 7])]
    requests = {str(i): add(llm, str(i), prompt, params) for i, prompt in enumerate(prompts)}
    for _ in range(2):
        engine.step()
    assert encoder_runner(llm).encoder_cache
    runner = workers_of(llm)[0].model_runner

    def fail(*args, **kwargs):
        raise RuntimeError("a step that fails")

    with monkeypatch.context() as patch:
        patch.setattr(runner, "make_output", fail)
        with pytest.raises(RuntimeError, match="a step that fails"):
            engine.step()
    outputs = {}
    while engine.has_unfinished_requests():
        outputs |= {output.request_id: output for output in engine.step()}
    assert_are_those_of_the_oracle(directory, requests, outputs, at_least=8)


def image(seed):
    colors = np.random.default_rng(seed).integers(0, 256, (30, 40, 3), np.uint8)
    return Image.fromarray(colors)


def test_generate_with_pictures_of_pil(llava):
    """From pictures to tokens, in a batch, by the processor that transformers has."""
    theirs, directory = llava
    llm = make_llm(directory, **USUAL)
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    token = small.PLACEHOLDER
    prompts = [
        {"prompt_token_ids": [3, token, 4], "multi_modal_data": {"image": image(0)}},
        {"prompt_token_ids": [3, 4, 5]},
        {
            "prompt_token_ids": [token, 8, token, 9],
            "multi_modal_data": {"image": [image(1), image(0)]},
        },
    ]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert encoder_runner(llm).num_encoded == 2
    import transformers

    processor = transformers.AutoImageProcessor.from_pretrained(directory)
    for prompt, output in zip(prompts, outputs, strict=True):
        images = prompt.get("multi_modal_data", {}).get("image", [])
        inputs = {"input_ids": torch.tensor([output.prompt_token_ids])}
        if images:
            inputs["pixel_values"] = processor(images, return_tensors="pt")["pixel_values"]
        with torch.no_grad():
            best = theirs(**inputs).logits[0, -1].topk(2)
        assert best.values[0] - best.values[1] > CLEAR
        assert output.outputs[0].token_ids[0] == int(best.indices[0])


def test_quantized_weights_and_8_bit_caches_concern_the_language_half(llava):
    _, directory = llava
    llm = make_llm(directory, **USUAL, quantization="int4", kv_cache_dtype="fp8")
    (worker,) = workers_of(llm)
    plain = {
        id(type(m.quant_method)) for m in worker.encoder.modules() if hasattr(m, "quant_method")
    }
    assert worker.model.kv_scales is not None
    assert plain
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    _, outputs = run(llm, [small.with_pictures([3, "sun", 4])], [params])
    assert len(outputs["0"].outputs[0].token_ids) == 3
    float_encoder = load_encoder(directory, load_config(directory), torch.float32, CPU)
    item = {"pixel_values": small.pixels("sun")}
    (want,) = float_encoder.encode("image", [item], oracle.make_backend("paged_torch", CPU))
    torch.testing.assert_close(encoder_runner(llm).encoder_cache["sun"], want, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": "embed"}, "reads pictures or sound; such models generate here, and do not pool"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size must be 1 for a model of pictures"),
        ({"speculative_config": {"method": "draft_model", "model": "HERE"}},
         r"speculative_config.method must be 'ngram' with pictures or sound"),
    ],
)  # fmt: skip
def test_what_does_not_go_with_pictures_is_refused(arguments, message, llava):
    _, directory = llava
    if "speculative_config" in arguments:
        config = arguments["speculative_config"] | {
            "model": str(directory), "num_speculative_tokens": 2,
        }  # fmt: skip
        arguments = {"speculative_config": config}
    with pytest.raises(ValueError, match=message):
        make_llm(directory, **USUAL | arguments)


def test_placeholders_are_never_drafted(llava):
    """A lookup that finds a picture's tokens ends before them."""
    _, directory = llava
    llm = make_llm(directory, **USUAL | WAYS["drafts"])
    drafter = llm.llm_engine.engine_core.drafter
    params = SamplingParams(temperature=0, max_tokens=9)
    token_ids, features = small.with_pictures([7, 8, 9, "sun", 7])
    request = add(llm, "a", ([*token_ids, 8], features), params)
    (seq,) = request.seqs
    llm.llm_engine.step()
    seq.token_ids = [*token_ids, 8]
    assert drafter.draft([seq], {}) == {seq.seq_id: [9]}
    seq.token_ids = [*token_ids, 8, 9]
    assert drafter.draft([seq], {}) == {}
