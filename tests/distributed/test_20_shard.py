"""The arithmetic of a division: heads, token ids, layers, and the grid of ranks."""

from dataclasses import replace

import pytest
from helpers import make_llm

from minivllm.config import CacheConfig, SchedulerConfig
from minivllm.distributed.shard import (
    check_tensor_parallel_size,
    coordinates,
    get_pp_indices,
    kv_head_share,
    pp_ranks,
    rank_of,
    tp_ranks,
    vocab_share,
)
from minivllm.kv import kv_cache_config
from minivllm.kv.kv_cache_config import get_kv_cache_config
from minivllm.kv.kv_cache_spec import FullAttentionSpec
from minivllm.models.loader import load_config


def test_ranks_of_a_group_are_vllms():
    """TP 2, PP 4: its docstring's example."""
    assert [tp_ranks(rank, 4, 2) for rank in (0, 2, 4, 6)] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [pp_ranks(rank, 4, 2) for rank in (0, 1)] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert tp_ranks(9, 4, 2) == [8, 9]  # of the second replica
    assert [rank_of(coordinates(rank, 3, 2), 3, 2) for rank in range(12)] == list(range(12))
    assert coordinates(11, 3, 2) == (1, 2, 1)


def test_heads_of_k_and_v_are_divided_and_then_repeated():
    heads = {size: [kv_head_share(2, rank, size) for rank in range(size)] for size in (1, 2, 4)}
    assert heads == {
        1: [slice(0, 2)],
        2: [slice(0, 1), slice(1, 2)],
        4: [slice(0, 1), slice(0, 1), slice(1, 2), slice(1, 2)],
    }


@pytest.mark.parametrize(
    ("vocab_size", "size", "starts", "stop"),
    [
        (3157, 2, [0, 1600], 3200),
        (3157, 4, [0, 800, 1600, 2400], 3200),
        (70, 4, [0, 32, 64, 96], 128),  # the last rank has only padding
        (128, 3, [0, 64, 128], 192),
    ],
)
def test_a_vocabulary_is_padded_to_equal_ranges(vocab_size, size, starts, stop):
    shares = [vocab_share(vocab_size, rank, size) for rank in range(size)]
    assert [share.start for share in shares] == starts
    assert [share.stop for share in shares] == [*starts[1:], stop]


@pytest.mark.parametrize(
    ("sizes", "size", "error"),
    [
        (
            (4, 4, 64),
            3,
            r"^Total number of attention heads \(4\) must be divisible by tensor parallel size "
            r"\(3\); tensor_parallel_size may be 1, 2, 4\.$",
        ),
        ((14, 2, 4864), 7, r"^intermediate_size: 4864 is not divisible by 7; .* may be 1, 2\.$"),
        (
            (12, 6, 120),
            4,
            r"^num_key_value_heads: 6 is not divisible by 4; .* 1, 2, 3, 6, 12\.$",
        ),
        ((4, 4, 64), 8, r"attention heads \(4\)"),
    ],
)
def test_what_does_not_divide_is_refused(sizes, size, error):
    with pytest.raises(ValueError, match=error):
        check_tensor_parallel_size(*sizes, size)


def test_more_ranks_than_heads_of_k_and_v():
    check_tensor_parallel_size(8, 2, 64, 8)


@pytest.mark.parametrize(
    ("layers", "size", "expected"),
    [(5, 2, [3, 2]), (5, 3, [2, 2, 1]), (5, 4, [1, 1, 2, 1]), (5, 5, [1] * 5), (6, 3, [2] * 3)],
)
def test_layers_of_a_stage_are_vllms(layers, size, expected):
    stages = [get_pp_indices(layers, stage, size) for stage in range(size)]
    assert [end - begin for begin, end in stages] == expected
    assert [begin for begin, _ in stages[1:]] == [end for _, end in stages[:-1]]
    assert (stages[0][0], stages[-1][1]) == (0, layers)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("3,2,1", r"^len\(partitions\)=3 does not match pp_size=2\.$"),
        ("3,3", r"^sum\(partitions\)=6 does not match num_hidden_layers=5\.$"),
        ("3;2", "^Invalid partition string: 3;2$"),
        ("5,0", "^Invalid partition string: 5,0; every stage has a layer"),
    ],
)
def test_a_partition_of_ones_own(monkeypatch, text, error):
    monkeypatch.setenv("MINIVLLM_PP_LAYER_PARTITION", "1,4")
    assert [get_pp_indices(5, stage, 2) for stage in (0, 1)] == [(0, 1), (1, 5)]
    monkeypatch.setenv("MINIVLLM_PP_LAYER_PARTITION", text)
    with pytest.raises(ValueError, match=error):
        get_pp_indices(5, 0, 2)


def test_more_stages_than_layers_are_refused():
    with pytest.raises(ValueError, match="at most the number of layers, 2, got 3"):
        get_pp_indices(2, 0, 3)


# -- the engine ----------------------------------------------------------------------------------


def pages(*sizes):
    """Specs of stages with one layer each, whose page has this many bytes."""
    return [{f"layer {i}": FullAttentionSpec(1, 1, 1, n // 2)} for i, n in enumerate(sizes)]


def test_the_number_of_blocks_is_the_least_over_ranks(monkeypatch):
    """Each counts its own bytes; a machine's memory is that of all its ranks together."""
    limits = CacheConfig(block_size=1), SchedulerConfig(max_model_len=9)
    blocks = get_kv_cache_config(*limits, pages(100, 100, 50), [1000, 900, 600], on_cpu=True)
    assert blocks.num_blocks == 9
    stated = CacheConfig(block_size=1, kv_cache_memory_bytes=1000), limits[1]
    assert get_kv_cache_config(*stated, pages(100, 50), [1, 1], on_cpu=True).num_blocks == 10
    monkeypatch.setattr(kv_cache_config, "host_memory_gib", lambda: 1700 / 2**30)
    assert get_kv_cache_config(*stated, pages(100, 50), [1, 1], on_cpu=True).num_blocks == 10
    monkeypatch.setattr(kv_cache_config, "host_memory_gib", lambda: 1400 / 2**30)
    with pytest.raises(ValueError, match="the KV cache would take"):
        get_kv_cache_config(*stated, pages(100, 50), [1, 1], on_cpu=True)
    on_two = get_kv_cache_config(*stated, pages(100, 50), [1, 1], on_cpu=True, num_machines=2)
    assert on_two.num_blocks == 10
    with pytest.raises(ValueError, match="the KV cache would take"):  # of four engines on two
        get_kv_cache_config(*stated, pages(100, 50), [1, 1], on_cpu=True, num_machines=2 / 4)


def test_more_ranks_have_more_blocks(tiny_qwen2):
    """Two heads of K and V: two ranks have one each, and so have four."""
    settings = {"num_gpu_blocks_override": None, "kv_cache_memory_bytes": 2**18}
    settings |= {"distributed_executor_backend": "together"}
    blocks = [
        make_llm(tiny_qwen2, tensor_parallel_size=size, **settings)
        .llm_engine.engine_core.kv_cache_config.num_blocks
        for size in (1, 2, 4)
    ]  # fmt: skip
    assert blocks == [64, 128, 128]


def test_a_model_that_cannot_be_divided_is_refused_before_anything_is_made(tiny_qwen2):
    with pytest.raises(ValueError, match=r"heads \(4\) must be divisible.* may be 1, 2, 4\.$"):
        make_llm(tiny_qwen2, tensor_parallel_size=3)
    quantized = replace(load_config(tiny_qwen2), quant_config="gptq")
    with pytest.raises(ValueError, match="must be 1 for quantized weights, which are not"):
        quantized.shard(0, 2)
    assert quantized.shard(0, 1) == quantized
