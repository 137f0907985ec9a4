"""Tests of sliding windows in the engine: freed blocks hold NaN, and nothing changes.

The runner's tables still have the ids of blocks that a window has left behind, which may be
another sequence's by then. Every token is the oracle's, and that of the same run without poison.
"""

import random

import pytest
from cuda_stand_ins import CallsAgain
from helpers import CLEAR, make_llm, nightly, workers_of
from poisoned_blocks import PoisonedBlocks
from small_models import make_model

from minivllm import SamplingParams
from minivllm.kv.groups.manager import HybridKVCacheManager
from minivllm.kv.groups.single_type import SlidingWindowManager
from minivllm.lab import oracle
from minivllm.utils.math_utils import cdiv

LENGTH = 96  # of the longest sequence
FULL, WINDOW = "full_attention", "sliding_attention"
# family of the small model, and the kinds of its layers; None: all have a window
MODELS = {
    "mistral": ("Mistral", None),
    "qwen2": ("Qwen2", [WINDOW, FULL, WINDOW, WINDOW]),
    "qwen3": ("Qwen3", [FULL, WINDOW, WINDOW, FULL]),
}
# what differs from a run with prefix caching, retention 0 and enough blocks
WAYS = {
    "usual": {},
    "without caching": {"enable_prefix_caching": False},
    "dense": {"prefix_cache_retention_interval": None},
    "interval": {"prefix_cache_retention_interval": 32},
    "recomputed": {"preemption_mode": "recompute"},
    "swapped": {"preemption_mode": "swap", "swap_space": 0.01},
    "overlapped": {"async_scheduling": True},
    "overlapped, recomputed": {"async_scheduling": True, "preemption_mode": "recompute"},
    "stages": {"pipeline_parallel_size": 2, "distributed_executor_backend": "together"},
    "ranks": {"tensor_parallel_size": 2, "distributed_executor_backend": "together"},
    "int8": {"kv_cache_dtype": "int8_per_token_head"},
    "fp8": {"kv_cache_dtype": "fp8"},
    "n-grams": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
    "modules": {"enforce_eager": True},
    "4-bit weights": {"quantization": "int4"},
    "draft model": {},  # of small models
}
TIGHT = ("recomputed", "swapped", "overlapped, recomputed")  # with as few blocks as can be
BACKENDS = ["reference", "paged_torch", "paged_numba"]
SMALL = {
    "hf_overrides": {"sliding_window": 5}, "dtype": "float32", "block_size": 4,
    "max_model_len": LENGTH, "max_num_batched_tokens": 12, "max_num_seqs": 4,
}  # fmt: skip


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Small random models; ``hf_overrides`` change their windows."""
    directory = tmp_path_factory.mktemp("windows")
    for name, (family, kinds) in MODELS.items():
        changes = {
            "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16,
            "max_position_embeddings": LENGTH, "sliding_window": 8,
        }  # fmt: skip
        if kinds is not None:
            changes |= {"use_sliding_window": True, "layer_types": kinds}
            changes |= {"num_hidden_layers": len(kinds)}
        make_model(family, **changes).save_pretrained(directory / name)
    return directory


def draw_engine(rng, way, checkpoints):
    """A model and a window, and the settings of an engine that serves it this way."""
    changes = dict(WAYS[way])
    models = list(MODELS)
    if way == "draft model":  # reads along behind the group of full attention, the second one
        models = ["qwen2"]
        drafts = {"model": str(checkpoints / "qwen3"), "num_speculative_tokens": 2}
        changes["speculative_config"] = drafts
    model = rng.choice(models)
    window = rng.randint(4, 24)
    block_size = rng.choice([1, 4, 4, 16])
    budgets = [5, 16, 64] if way == "draft model" or way in TIGHT else [1, 5, 16, 64]
    budget = rng.choice(budgets)
    plans = 2 if "async_scheduling" in changes else 1
    kinds = MODELS[model][1] or [WINDOW]  # as many groups as that, or fewer
    longest = {FULL: LENGTH, WINDOW: min(window - 1 + plans * budget, LENGTH) + block_size}
    needed = sum(cdiv(longest[kind], block_size) for kind in kinds)
    return checkpoints / model, {
        "hf_overrides": {"sliding_window": window},
        "dtype": "float32",
        "block_size": block_size,
        "max_model_len": LENGTH,
        "max_num_batched_tokens": budget,
        "max_num_seqs": min(budget, 8),
        "num_gpu_blocks_override": 1 + needed * (1 if way in TIGHT else 2),
        **changes,
    }


def draw_requests(rng, budget, is_tight):
    """Prompts with a common beginning, of which one is longer than three windows.

    Where memory is tight the others are short, and so run beside each other until they have grown.
    """
    common = rng.choices(range(96), k=40)
    begins = [0, 13, 16] if is_tight else [0, 13, 16, 32, 40]
    prompts = [common + rng.choices(range(96), k=35)]
    for _ in range(5 if budget > 1 else 2):
        new = rng.choices(range(96), k=rng.randint(1, 8 if is_tight else 20))
        prompts.append(common[: rng.choice(begins)] + new)
    if is_tight:
        prompts.reverse()
    requests = []
    for i, prompt in enumerate(prompts):
        few, many = (12, 20) if is_tight else (4, 16)
        n = 1
        if len(prompt) < (12 if is_tight else 36) and budget > 1 and rng.random() < 0.6:
            n = 2
            few, many = 4, 8
        params = SamplingParams(
            n=n,
            temperature=1.0 if n > 1 else rng.choice([0, 1.0]),
            seed=i,
            max_tokens=rng.randint(few, many),
            ignore_eos=True,
        )
        requests.append((prompt, params))
    return requests


def serve(llm, requests, steps_between):
    """Serve requests that come one after the other. Returns them, with their tokens."""
    engine = llm.llm_engine
    served = []
    step = 0
    while engine.has_unfinished_requests() or len(served) < len(requests):
        while len(served) < len(requests) and step >= steps_between * len(served):
            prompt, params = requests[len(served)]
            request = engine.input_processor.make_request(str(len(served)), prompt, params)
            engine.submit(request)
            served.append(request)
        engine.step()
        engine.check_integrity()
        step += 1
    pool = engine.scheduler.kv_manager.block_pool
    assert pool.num_free_blocks == pool.num_usable_blocks
    return served


def check_by_oracle(model, request):
    """Hold every sample to what one pass over all tokens says, as far as that is clear."""
    for seq in request.seqs:
        want = oracle.run(model, request, LENGTH, seq.index)
        clear = next((i for i, m in enumerate(want.margins) if m < CLEAR), len(want.margins))
        assert seq.output_token_ids[:clear] == want.token_ids[:clear], seq.seq_id


def check(directory, settings, requests, steps_between=4):
    """Serve some requests with and without poison. Returns the poisoned engine's plans."""
    clean = serve(make_llm(directory, **settings), requests, steps_between)
    llm = make_llm(directory, **settings)
    poison = PoisonedBlocks(llm)
    served = serve(llm, requests, steps_between)
    assert poison.num_poisoned > 0
    poison.check_null_block()
    assert tokens_of(served) == tokens_of(clean), settings
    if "kv_cache_dtype" not in settings:  # of rounded K and V the oracle knows nothing
        if len(workers_of(llm)) > 1:  # each has a part of the model
            names = "hf_overrides", "dtype", "max_model_len"
            llm = make_llm(directory, **{name: settings[name] for name in names})
        for request in served:
            check_by_oracle(llm.llm_engine.model_runner.model, request)
    return poison.plans


def check_way(checkpoints, way, backend, seed):
    """Serve what is drawn for a way and a seed."""
    rng = random.Random(f"{way} {seed}")
    directory, settings = draw_engine(rng, way, checkpoints)
    is_tight = way in TIGHT
    requests = draw_requests(rng, settings["max_num_batched_tokens"], is_tight)
    settings["attention_backend"] = backend
    return check(directory, settings, requests, steps_between=0 if is_tight else 4)


def tokens_of(served):
    """Tokens of every sample."""
    return [[seq.output_token_ids for seq in request.seqs] for request in served]


@pytest.mark.parametrize("way", WAYS)
def test_what_no_table_has_is_never_read(checkpoints, way):
    """Each way with one backend, the next one with another."""
    number = list(WAYS).index(way)
    plans = check_way(checkpoints, way, BACKENDS[number % len(BACKENDS)], seed=1)
    if way in TIGHT:
        assert any(plan.preempted_req_ids for plan in plans)
    if way == "swapped":
        assert any(plan.swaps_in for plan in plans)


def test_nor_by_the_kernels_of_a_gpu(checkpoints):
    """Decodes and chunks, by Triton's interpreter."""
    check(checkpoints / "qwen2", {"attention_backend": "paged_triton", **SMALL}, few_requests())


def few_requests(max_tokens=2):
    """Two requests with a common beginning, both longer than three windows of five."""
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    prompt = [(11 * i) % 96 for i in range(19)]
    return [(prompt, params), ([*prompt[:14], 1, 2], params)]


def test_nor_in_recorded_steps(checkpoints):
    """Decodes that are filled up to a size for which a step was recorded, a buffer a group."""
    settings = {**SMALL, "attention_backend": "paged_torch"}
    requests = few_requests(max_tokens=9)
    expected = tokens_of(serve(make_llm(checkpoints / "qwen2", **settings), requests, 4))
    llm = make_llm(checkpoints / "qwen2", **settings)
    recorder = CallsAgain()
    llm.llm_engine.model_runner.capture_decodes([4], LENGTH, recorder)
    PoisonedBlocks(llm)
    assert tokens_of(serve(llm, requests, 4)) == expected
    assert recorder.num_replays > 5


class GoesTooEarly(SlidingWindowManager):
    """Leaves a key behind that the next query still sees."""

    def num_skipped_blocks(self, num_computed_tokens):
        return super().num_skipped_blocks(num_computed_tokens + 1)

    def next_skip(self, num_skipped):
        return super().next_skip(num_skipped) - 1


class TooEarly(HybridKVCacheManager):
    sliding_window_cls = GoesTooEarly


def test_a_block_that_goes_one_token_too_early_is_seen(checkpoints):
    """Without poison it would not be: what it held is still there, until it is written to."""
    settings = {**SMALL, "kv_cache_manager_cls": TooEarly}
    requests = few_requests(max_tokens=8)[:1]
    expected = tokens_of(serve(make_llm(checkpoints / "mistral", **SMALL), requests, 4))
    llm = make_llm(checkpoints / "mistral", **settings)
    assert tokens_of(serve(llm, requests, 4)) == expected
    llm = make_llm(checkpoints / "mistral", **settings)
    PoisonedBlocks(llm)
    assert tokens_of(serve(llm, requests, 4)) != expected


@pytest.mark.slow
@pytest.mark.combinations(1)
@pytest.mark.parametrize("seed", range(2, 6))
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("way", WAYS)
def test_in_every_mixture(checkpoints, way, backend, seed):
    check_way(checkpoints, way, backend, seed)


@nightly
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("way", ["usual", "swapped", "overlapped", "int8", "n-grams"])
def test_in_mixtures_by_the_kernels_of_a_gpu(checkpoints, way, seed):
    check_way(checkpoints, way, "paged_triton", seed)
