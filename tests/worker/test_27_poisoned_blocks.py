"""Tests of sliding windows in the engine: freed blocks hold NaN, and nothing changes.

The runner's tables still have the ids of blocks that a window has left behind, which may be
somebody else's by then. Every token is the oracle's, and that of the same run without poison.
"""

import random

import pytest
from helpers import CLEAR, make_llm, workers_of
from poisoned_blocks import PoisonedBlocks
from small_models import make_model

from minivllm import SamplingParams
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
    "dense": {},
    "interval": {},
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
    "draft model": {},  # of small models
}
BACKENDS = ["reference", "paged_torch", "paged_numba"]


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
    if way == "draft model":  # reads along behind a group that keeps all tokens
        models.remove("mistral")
        drafts = {"model": str(checkpoints / "qwen3"), "num_speculative_tokens": 2}
        changes["speculative_config"] = drafts
    model = rng.choice(models)
    block_size = rng.choice([1, 4, 4, 16])
    budget = rng.choice([1, 5, 16, 64] if way != "draft model" else [5, 16, 64])
    blocks_of_longest = cdiv(LENGTH, block_size) + 1
    num_groups = 1 if MODELS[model][1] is None else 4
    is_tight = "preemption_mode" in changes
    return checkpoints / model, {
        "hf_overrides": {"sliding_window": rng.randint(4, 24)},
        "dtype": "float32",
        "block_size": block_size,
        "max_model_len": LENGTH,
        "max_num_batched_tokens": budget,
        "max_num_seqs": min(budget, 8),
        "num_gpu_blocks_override": 1 + num_groups * blocks_of_longest * (1 if is_tight else 4),
        **changes,
    }  # fmt: skip


def draw_requests(rng, budget):
    """Prompts with a common beginning, of which the first is longer than three windows."""
    common = rng.choices(range(96), k=40)
    requests = []
    for i in range(6 if budget > 1 else 3):
        begin = rng.choice([0, 13, 16, 32, 40]) if i else 40
        prompt = common[:begin] + rng.choices(range(96), k=rng.randint(1, 20) if i else 35)
        samples = len(prompt) < 36 and budget > 1 and rng.random() < 0.5
        params = SamplingParams(
            n=2 if samples else 1,
            temperature=1.0 if samples else rng.choice([0, 1.0]),
            seed=i,
            max_tokens=rng.randint(4, 20),
            ignore_eos=True,
        )
        requests.append((prompt, params))
    return requests


def serve(llm, requests):
    """Serve requests that come one after the other. Returns them, with their tokens."""
    engine = llm.llm_engine
    served = []
    step = 0
    while engine.has_unfinished_requests() or len(served) < len(requests):
        while len(served) < len(requests) and step >= 4 * len(served):
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


def check(checkpoints, way, backend, seed):
    """Serve some requests with and without poison. Returns the poisoned engine's plans."""
    rng = random.Random(f"{way} {seed}")
    directory, settings = draw_engine(rng, way, checkpoints)
    requests = draw_requests(rng, settings["max_num_batched_tokens"])
    settings["attention_backend"] = backend
    clean = serve(make_llm(directory, **settings), requests)
    llm = make_llm(directory, **settings)
    poison = PoisonedBlocks(llm)
    served = serve(llm, requests)
    assert poison.num_poisoned > 0
    poison.check_null_block()
    tokens, expected = (
        [[seq.output_token_ids for seq in request.seqs] for request in both]
        for both in (served, clean)
    )
    assert tokens == expected, settings
    if "kv_cache_dtype" not in settings:  # of rounded K and V the oracle knows nothing
        if len(workers_of(llm)) > 1:  # each has a part of the model
            names = "hf_overrides", "dtype", "max_model_len"
            llm = make_llm(directory, **{name: settings[name] for name in names})
        for request in served:
            check_by_oracle(llm.llm_engine.model_runner.model, request)
    return poison.plans


@pytest.mark.parametrize("way", WAYS)
def test_what_no_table_has_is_never_read(checkpoints, way):
    """Each way with one backend, the next one with another."""
    number = list(WAYS).index(way)
    check(checkpoints, way, BACKENDS[number % len(BACKENDS)], seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("way", WAYS)
def test_in_every_mixture(checkpoints, way, backend, seed):
    check(checkpoints, way, backend, seed)
