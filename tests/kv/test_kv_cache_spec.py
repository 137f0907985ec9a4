"""Tests of specs and groups: what a block holds, how many bytes that are, and of which layers."""

import pytest
import torch
from helpers import make_llm, workers_of

from minivllm.attention.kv_cache import KVCache
from minivllm.kv.kv_cache_spec import (
    FullAttentionSpec,
    KVCacheGroupSpec,
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
