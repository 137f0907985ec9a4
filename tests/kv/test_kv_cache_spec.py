"""Tests of specs and groups: what a block holds, how many bytes that are, and of which layers."""

import pytest
import torch
from helpers import make_llm, workers_of

from minivllm.attention.kv_cache import KVCache
from minivllm.kv.kv_cache_spec import (
    FullAttentionSpec,
    KVCacheGroupSpec,
    SlidingWindowSpec,
    bytes_per_block,
    get_kv_cache_groups,
    layer_places,
)
from minivllm.lab.sim.cost import MODELS

CPU = torch.device("cpu")
SMALL = FullAttentionSpec(16, num_kv_heads=2, head_size=8, bytes_per_number=4)
LARGE = FullAttentionSpec(16, num_kv_heads=2, head_size=16, bytes_per_number=4)


def test_a_page_has_k_and_v_of_a_layers_positions():
    assert SMALL.page_size_bytes == 2 * 16 * 2 * 8 * 4
    scaled = FullAttentionSpec(16, 2, 8, bytes_per_number=1, bytes_per_scale=4)
    assert scaled.page_size_bytes == 2 * 16 * 2 * (8 + 4)


def test_a_group_is_formed_from_all_ranks_layers():
    """Stages have some layers each; ranks that share a layer name it alike."""
    ranks = [{"a": SMALL, "b": SMALL}, {"a": SMALL, "b": SMALL}, {"c": SMALL, "draft": LARGE}]
    (group,) = get_kv_cache_groups(ranks)
    assert group.layer_names == ("a", "b", "c", "draft")
    assert group.kv_cache_spec == SMALL
    sizes = [bytes_per_block([group], specs) for specs in ranks]
    assert sizes == [2 * SMALL.page_size_bytes] * 2 + [3 * SMALL.page_size_bytes]
    assert get_kv_cache_groups([{}, {}]) == ()
    assert bytes_per_block((), {}) == 0


# layers of each kind ("F" full, a number: a window), in the order of the model; the layers of each
# group, bytes of a block of 16 tokens of bfloat16 / KiB, and what a request of 32k tokens may hold
# against full attention in all layers, with 512 and with 8192 tokens in flight
MODELS_OF_TODAY = {
    "Llama 3 8B": (["F"] * 32, 8, 128, [32], 2048, 1.0, 1.0),
    "Mistral 7B v0.1": ([4096] * 32, 8, 128, [32], 2048, 0.14, 0.38),
    "Gemma 2 9B": ([4096, "F"] * 21, 8, 256, [21, 21], 2688, 0.57, 0.69),
    "Gemma 3 1B": (
        ([512] * 5 + ["F"]) * 4 + [512] * 2, 1, 256, [4, 4, 4, 4, 3, 3, 4], 64, 0.18, 0.40,
    ),
    "Gemma 3 27B": (
        ([1024] * 5 + ["F"]) * 10 + [1024] * 2, 16, 128, [9, 9, 9, 9, 8, 8, 10], 1280, 0.21, 0.43,
    ),
    "gpt-oss 20b": ([128, "F"] * 12, 8, 64, [12, 12], 384, 0.51, 0.63),
    "gpt-oss 120b": ([128, "F"] * 18, 8, 64, [18, 18], 576, 0.51, 0.63),
    "Olmo 3 7B": (([4096] * 3 + ["F"]) * 8, 32, 128, [8, 8, 8, 8], 2048, 0.36, 0.53),
    "two windows": ([64, 256, "F"] * 8, 8, 128, [8, 8, 8], 512, 0.35, 0.50),
    "a drafter added": ([128, "F"] * 12 + ["F"], 8, 64, [12, 13], 416, None, None),
    "20 full, 30 windows": (["F", "F", 128, 128, 128] * 10, 8, 64, [20, 15, 15], 640, None, None),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS_OF_TODAY)
def test_groups_of_todays_models(name):
    """The groups that vLLM's get_kv_cache_groups forms, and the bytes that follow from them."""
    kinds, num_kv_heads, head_size, sizes, kib, *shares = MODELS_OF_TODAY[name]
    heads = {"num_kv_heads": num_kv_heads, "head_size": head_size, "bytes_per_number": 2}
    specs = {
        f"layers.{i}": FullAttentionSpec(16, **heads)
        if kind == "F"
        else SlidingWindowSpec(16, **heads, sliding_window=kind)
        for i, kind in enumerate(kinds)
    }
    groups = get_kv_cache_groups([specs])
    assert [len(group.layer_names) for group in groups] == sizes
    assert sorted(n for group in groups for n in group.layer_names) == sorted(specs)
    for group in groups:
        assert {specs[layer] for layer in group.layer_names} == {group.kv_cache_spec}
    assert bytes_per_block(groups, specs) == kib * 1024
    assert max(place.place for place in layer_places(groups, specs)) + 1 == max(sizes)
    for in_flight, share in zip((512, 8192), shares, strict=True):
        if share is not None:
            held = sum(g.kv_cache_spec.max_blocks(32768, in_flight) for g in groups) * kib * 1024
            full = len(specs) * 2048 * FullAttentionSpec(16, **heads).page_size_bytes
            assert held / full == pytest.approx(share, abs=0.0051)


def test_a_windows_blocks_are_window_plus_what_is_in_flight():
    spec = SlidingWindowSpec(16, 1, 8, 4, sliding_window=128)
    assert [spec.max_blocks(32768, tokens) for tokens in (1, 512, 8192)] == [9, 41, 521]
    assert spec.max_blocks(64, 512) == 5, "no more than a sequence has, and one"
    assert FullAttentionSpec(16, 1, 8, 4).max_blocks(32768, 512) == 2048


def test_layers_are_dealt_out_in_turn():
    """So each stage of a pipeline has its share of every group, whichever layers it has."""
    window = SlidingWindowSpec(16, 2, 8, 4, sliding_window=32)
    stages = [
        {"sw.0": window, "full.0": SMALL, "sw.1": window},
        {"full.1": SMALL, "sw.2": window, "sw.3": window},
    ]
    groups = get_kv_cache_groups(stages)
    names = [group.layer_names for group in groups]
    assert names == [("sw.0", "sw.2"), ("sw.1", "sw.3"), ("full.0", "full.1")]
    assert [group.is_full for group in groups] == [False, False, True]
    assert [bytes_per_block(groups, stage) for stage in stages] == [SMALL.page_size_bytes] * 2


def test_pages_are_made_equal():
    """A small page gets more positions; one that does not divide the largest is padded."""
    window = SlidingWindowSpec(16, 1, 8, 4, sliding_window=32)
    groups = get_kv_cache_groups([{"a": window, "b": SMALL, "c": window, "d": SMALL}])
    assert [group.kv_cache_spec.block_size for group in groups] == [32, 16]
    odd = SlidingWindowSpec(16, 1, 12, 4, sliding_window=32)
    groups = get_kv_cache_groups([{"a": odd, "b": SMALL}])
    assert [group.kv_cache_spec.block_size for group in groups] == [16, 16]
    pages = {group.kv_cache_spec.page_size_bytes for group in groups}
    assert pages == {SMALL.page_size_bytes}
    # where all keep the same tokens a block holds each layer's own page
    wide = SlidingWindowSpec(16, 2, 8, 4, sliding_window=32)
    for specs in ({"a": SMALL, "b": LARGE}, {"a": window, "b": wide}):
        (group,) = get_kv_cache_groups([specs])
        sizes = [spec.page_size_bytes for spec in specs.values()]
        assert bytes_per_block([group], specs) == sum(sizes)


def test_a_draft_models_layers_are_in_the_first_full_group():
    window = SlidingWindowSpec(16, 2, 8, 4, sliding_window=32)
    draft = {"draft_model.a": LARGE, "draft_model.b": LARGE}
    target = {"a": window, "b": SMALL, "c": window, "d": SMALL}
    groups = get_kv_cache_groups([target | draft])
    assert [group.layer_names for group in groups] == [
        ("a", "c"), ("b", "d", "draft_model.a", "draft_model.b")
    ]  # fmt: skip
    num_bytes = 2 * SMALL.page_size_bytes + 2 * LARGE.page_size_bytes
    assert bytes_per_block(groups, target | draft) == num_bytes
    assert layer_places(groups, draft) == [(1, 0), (1, 1)]
    with pytest.raises(ValueError, match="a draft model keeps all tokens, but every layer"):
        get_kv_cache_groups([{"a": window} | draft])


def test_groups_lie_on_top_of_each_other():
    """A block is one group's at a time, so it is as large as the largest group's layers here."""
    groups = [KVCacheGroupSpec(("a", "c"), SMALL), KVCacheGroupSpec(("b", "d", "e"), SMALL)]
    specs = dict.fromkeys("abcde", SMALL)
    assert bytes_per_block(groups, specs) == 3 * SMALL.page_size_bytes
    assert layer_places(groups, specs) == [(0, 0), (1, 0), (0, 1), (1, 1), (1, 2)]
    stage = dict.fromkeys("cd", SMALL)  # which has one layer of each
    assert bytes_per_block(groups, stage) == SMALL.page_size_bytes
    assert layer_places(groups, stage) == [(0, 0), (1, 0)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn, torch.int8], ids=str)
def test_layers_at_one_place_are_views_of_the_same_memory(dtype):
    cache = KVCache(
        3, 4, 2, 2, 8, dtype, CPU, places=[0, 0, 1], layer_groups=[0, 1, 1],
        scales=[(1.0, 2.0), (3.0, 4.0), (5.0, 6.0)] if dtype.itemsize == 1 else (),
    )  # fmt: skip
    assert cache.data.shape[0] == 2
    assert cache.layer_groups == [0, 1, 1]
    first, second, third = ([part.data_ptr() for part in cache.layer(i)[:2]] for i in range(3))
    assert first == second
    assert not set(first) & set(third)
    if dtype.itemsize == 1:  # scales are a layer's own, wherever its numbers are
        assert [cache.layer(i).k_scale for i in range(3)] == [1, 3, 5]


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "fp8", "int8_per_token_head"])
@pytest.mark.parametrize("stages", [1, 2])
def test_the_cache_has_the_bytes_that_were_counted(tiny_qwen2, kv_cache_dtype, stages):
    """Tensors of each rank, scales of int8 included, against specs; and the blocks that fit."""
    memory = 2**18
    llm = make_llm(
        tiny_qwen2, kv_cache_dtype=kv_cache_dtype, block_size=4, max_model_len=32,
        num_gpu_blocks_override=None, kv_cache_memory_bytes=memory,
        pipeline_parallel_size=stages, distributed_executor_backend="together",
    )  # fmt: skip
    config = llm.llm_engine.engine_core.kv_cache_config
    (group,) = config.groups
    assert group.layer_names == ("model.layers.0.self_attn", "model.layers.1.self_attn")
    sizes = []
    for worker in workers_of(llm):
        cache = worker.model_runner.kv_cache
        specs = worker.get_kv_cache_spec()
        assert len(specs) == 2 // stages
        sizes.append(bytes_per_block(config.groups, specs))
        tensors = [cache.data] if cache.scales is None else [cache.data, cache.scales]
        assert sum(tensor.nbytes for tensor in tensors) == config.num_blocks * sizes[-1]
        assert worker.profile_memory().kv_cache == config.num_blocks * sizes[-1]
    assert config.num_blocks == memory // max(sizes)


def test_a_draft_models_pages_are_counted_behind_the_targets(tiny_qwen2):
    llm = make_llm(
        tiny_qwen2,
        block_size=4,
        speculative_config={"model": str(tiny_qwen2), "num_speculative_tokens": 2},
    )
    worker = llm.llm_engine.worker
    names = list(worker.get_kv_cache_spec())
    assert names[:2] == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    assert all(name.startswith("draft_model.model.layers.") for name in names[2:])
    cache = worker.model_runner.kv_cache
    num_bytes = cache.data.nbytes + cache.draft.data.nbytes
    assert num_bytes == worker.num_blocks * worker.bytes_per_block


def test_the_simulator_counts_the_same_bytes():
    shape = MODELS["llama-8b"]
    assert shape.bytes_per_block(16) == 32 * FullAttentionSpec(16, 8, 128, 2).page_size_bytes
    assert shape.kv_bytes_per_token * 16 == shape.bytes_per_block(16)
