"""Options of an engine whose model has windows: which go together, and what memory there is."""

import logging

import pytest
from helpers import make_llm

from minivllm import SamplingParams
from minivllm.config import CacheConfig, SchedulerConfig
from minivllm.kv.groups.manager import HybridKVCacheManager
from minivllm.kv.kv_cache_config import get_kv_cache_config
from minivllm.kv.kv_cache_spec import FullAttentionSpec, SlidingWindowSpec
from minivllm.kv.manager import KVCacheManager

MIXED = {"hf_overrides": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0,
                          "layer_types": ["sliding_attention", "full_attention"]}}  # fmt: skip
WINDOWS = {"hf_overrides": {**MIXED["hf_overrides"], "layer_types": ["sliding_attention"] * 2}}
LIMITS = {"block_size": 4, "max_model_len": 64, "max_num_batched_tokens": 16}


def manager_of(llm):
    return llm.llm_engine.engine_core.scheduler.kv_manager


def test_the_manager_suits_the_layers(tiny_qwen2):
    """One group of full attention has the plain manager; all else has the one with groups."""
    assert type(manager_of(make_llm(tiny_qwen2, **LIMITS))) is KVCacheManager
    for model, windows in ((MIXED, [8, None]), (WINDOWS, [8])):
        manager = manager_of(make_llm(tiny_qwen2, **LIMITS, **model))
        assert type(manager) is HybridKVCacheManager
        assert [getattr(m.spec, "sliding_window", None) for m in manager.managers] == windows
        off = make_llm(tiny_qwen2, **LIMITS, **model, disable_hybrid_kv_cache_manager=True)
        assert type(manager_of(off)) is KVCacheManager


@pytest.mark.parametrize("plans", [1, 2])
def test_a_window_holds_what_plans_in_flight_read(tiny_qwen2, plans):
    llm = make_llm(tiny_qwen2, **LIMITS, **MIXED, async_scheduling=plans == 2)
    window, full = manager_of(llm).managers
    assert full.max_blocks == 16
    assert window.max_blocks == -(-(8 - 1 + plans * 16) // 4) + 1


def test_the_options_reach_the_manager(tiny_qwen2):
    options = {"prefix_cache_retention_interval": 8, "prefix_match_unit": 2}
    manager = manager_of(make_llm(tiny_qwen2, **LIMITS, **MIXED, **options))
    assert manager.prefix_cache.block_size == 2
    assert manager.managers[0].retention_interval == 8
    dense = make_llm(tiny_qwen2, **LIMITS, **MIXED, prefix_cache_retention_interval=None)
    assert manager_of(dense).managers[0].retention_interval is None


class Own(KVCacheManager):
    pass


CONNECTOR = {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}
REFUSED = [
    (MIXED, {"prefix_cache_retention_interval": 6}, r"interval \(6\) must be non-negative and"),
    (MIXED, {"prefix_cache_retention_interval": -4}, r"interval \(-4\) must be non-negative"),
    (MIXED, {"prefix_cache_retention_interval": True}, "must be a number of tokens, or None"),
    (MIXED, {"prefix_match_unit": 3}, r"Invalid prefix_match_unit=3; prefix-cacheable KV cache gr"),
    (MIXED, {"prefix_match_unit": 0}, "prefix_match_unit must be an integer of at least 1"),
    (WINDOWS, {"prefix_match_unit": 2}, "with a single KV cache group"),
    ({}, {"prefix_cache_retention_interval": 8}, "is set but this model has no sliding-window"),
    ({}, {"prefix_match_unit": 2}, r"hits land on the block size \(4\). Unset it or set it to 4"),
    (MIXED, {"kv_transfer_config": CONNECTOR}, "kv_transfer_config must be None where layers have"),
    (WINDOWS, {"kv_transfer_config": CONNECTOR}, "unless disable_hybrid_kv_cache_manager=True"),
    (MIXED, {"kv_cache_manager_cls": Own}, "kv_cache_manager_cls must be a HybridKVCacheManager"),
    (MIXED, {"disable_hybrid_kv_cache_manager": "yes"}, "disable_hybrid_kv_cache_manager must be"),
    (MIXED, {"num_gpu_blocks_override": 20}, r"has 19 usable blocks of 4 tokens, but one sequence "
     r"of max_model_len=64 takes 23: 7 \+ 16 in its groups of layers; .*lower max_model_len to 49"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "options", "message"), REFUSED)
def test_what_does_not_go_together_is_refused(tiny_qwen2, model, options, message):
    with pytest.raises(ValueError, match=message):
        make_llm(tiny_qwen2, **{**LIMITS, **model, **options})


def test_a_draft_model_needs_a_group_that_keeps_all(tiny_qwen2):
    draft = {"speculative_config": {"model": str(tiny_qwen2), "num_speculative_tokens": 2}}
    with pytest.raises(ValueError, match="every layer of the model has a sliding window"):
        make_llm(tiny_qwen2, **LIMITS, **WINDOWS, **draft)
    off = make_llm(tiny_qwen2, **LIMITS, **WINDOWS, **draft, disable_hybrid_kv_cache_manager=True)
    mixed = make_llm(tiny_qwen2, **LIMITS, **MIXED, **draft)
    params = SamplingParams(max_tokens=20, temperature=0)
    prompt = {"prompt_token_ids": list(range(5, 30))}
    got = mixed.generate(prompt, params)[0].outputs[0].token_ids
    assert len(got) == 20
    assert off.generate(prompt, params)[0].outputs[0].token_ids != []


def test_a_manager_of_ones_own_may_extend_the_one_with_groups(tiny_qwen2):
    class OwnGroups(HybridKVCacheManager):
        pass

    for model in (MIXED, {}):
        llm = make_llm(tiny_qwen2, **LIMITS, **model, kv_cache_manager_cls=OwnGroups)
        assert type(manager_of(llm)) is OwnGroups
        assert llm.generate({"prompt_token_ids": [5, 6, 7]}, SamplingParams(max_tokens=3))


def test_the_log_says_what_there_is_room_for(tiny_qwen2, caplog):
    with caplog.at_level(logging.INFO, logger="minivllm"):
        make_llm(tiny_qwen2, **LIMITS, **MIXED, num_gpu_blocks_override=47)
    assert "Maximum concurrency for 64 tokens per request: 2.00x" in caplog.text
    assert "1 of 2 KV cache groups have a sliding window: there is room for 128" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="minivllm"):
        make_llm(tiny_qwen2, **LIMITS, **MIXED, disable_hybrid_kv_cache_manager=True)
    assert "1 of 2 layers have a sliding window of up to 8 tokens, and keep all" in caplog.text


def test_blocks_of_several_sizes_are_refused():
    heads = {"num_kv_heads": 1, "head_size": 8, "bytes_per_number": 4}
    specs = {
        "a": SlidingWindowSpec(4, **heads, sliding_window=8),
        "b": FullAttentionSpec(4, **{**heads, "num_kv_heads": 2}),
    }
    with pytest.raises(ValueError, match=r"blocks would have \[8, 4\] positions or be padded"):
        get_kv_cache_config(
            CacheConfig(block_size=4, num_gpu_blocks_override=100),
            SchedulerConfig(max_model_len=64),
            [specs],
            [2**20],
            on_cpu=True,
        )


def test_the_start_check_counts_all_groups():
    """As many blocks as fit one longest request are enough, and one fewer is not."""
    heads = {"num_kv_heads": 1, "head_size": 8, "bytes_per_number": 4}
    specs = {
        "a": SlidingWindowSpec(4, **heads, sliding_window=9),
        "b": FullAttentionSpec(4, **heads),
    }
    for plans, needed in ((1, 16 + 7), (2, 16 + 11)):
        limits = SchedulerConfig(max_model_len=64, max_num_batched_tokens=16)
        for num_blocks in (needed, needed + 1):
            cache = CacheConfig(block_size=4, num_gpu_blocks_override=num_blocks)
            rest = {"available_memory": [2**20], "on_cpu": True, "num_plans": plans}
            if num_blocks == needed:  # one of them is the null block
                with pytest.raises(ValueError, match=f"takes {needed}"):
                    get_kv_cache_config(cache, limits, [specs], **rest)
            else:
                found = get_kv_cache_config(cache, limits, [specs], **rest)
                assert found.max_concurrency(64, plans * 16) == 1
