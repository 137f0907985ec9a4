"""The prefix cache: what is found, what is forgotten, and that it changes no token.

Preempted requests, salts and resets: test_08b_preemption_and_salts.py.
"""

import pytest
from helpers import (
    arrive,
    caching,
    can_admit,
    compute,
    make_scheduler,
    num_hit,
    request,
    run,
    sequence,
    step,
)

from minivllm import LLM, SamplingParams
from minivllm.kv.prefix_cache import CacheHit, hash_block_tokens
from minivllm.lab.sim.loop import runner_output
from minivllm.request import RequestStatus
from minivllm.trace.records import BlocksShared, Scheduled


@pytest.mark.parametrize(
    ("prompt", "hit"),
    [(1, 0), (4, 0), (5, 4), (7, 4), (8, 4), (9, 8), (11, 8), (12, 8), (13, 12), (40, 12)],
)
def test_a_hit_is_whole_blocks_and_never_the_last_token(prompt, hit):
    manager = caching()
    arrive(manager, "a", 14)  # three full blocks and two tokens
    assert num_hit(manager, list(range(prompt))) == hit


def test_a_hit_begins_at_the_beginning():
    manager = caching()
    arrive(manager, "a", 12)
    assert num_hit(manager, [99, *range(1, 12)]) == 0
    assert num_hit(manager, [*range(4), 99, *range(5, 12)]) == 4
    assert num_hit(manager, [*range(4, 12)]) == 0


def test_a_hash_depends_on_everything_before_it():
    a, b = hash_block_tokens(bytes(32), [1, 2]), hash_block_tokens(bytes(32), [2, 1])
    assert len({a, b, hash_block_tokens(a, [5, 6]), hash_block_tokens(b, [5, 6])}) == 4
    assert hash_block_tokens(bytes(32), [1, 2], "salt") not in (
        a,
        hash_block_tokens(bytes(32), [1, 2], "other"),
    )


def test_looking_changes_nothing():
    manager = caching()
    seq = arrive(manager, "a", 12)
    manager.free(seq)
    before = [b.block_id for b in manager.block_pool.free_block_queue]
    assert num_hit(manager, list(range(12))) == 8
    assert [b.block_id for b in manager.block_pool.free_block_queue] == before


def test_a_stale_hash_is_gone_when_its_block_is_reused():
    manager = caching(num_blocks=4)
    manager.free(arrive(manager, "a", 12))
    manager.free(arrive(manager, "b", [50, *range(1, 12)]))  # takes all three blocks
    assert num_hit(manager, list(range(12))) == 0
    assert num_hit(manager, [50, *range(1, 12)]) == 8


def test_eviction_takes_the_least_recently_used_and_a_prefix_after_its_rest():
    manager = caching(num_blocks=7)
    manager.free(arrive(manager, "old", [1] * 8))
    manager.free(arrive(manager, "new", [2] * 8))
    manager.free(arrive(manager, "old again", [1] * 9))  # a hit refreshes; its tail has no hash
    arrive(manager, "c", [3] * 12)  # needs three: two without a hash, then the oldest with one
    assert num_hit(manager, [1] * 9) == 8
    assert num_hit(manager, [2] * 9) == 4, "the tail of a sequence goes before its head"


def test_a_hit_on_free_blocks_counts_them_as_needed():
    manager = caching(num_blocks=5)
    manager.free(arrive(manager, "a", 12))
    other = arrive(manager, "b", [9] * 4)
    seq = sequence("c", 17)  # 5 blocks; 3 are hits, but they are among the free ones
    hit = manager.get_computed_blocks(seq)
    assert len(hit.blocks) == 3
    assert hit.num_tokens == 12
    assert not can_admit(manager, seq, hit)
    manager.free(other)
    assert not can_admit(manager, seq, manager.get_computed_blocks(seq))
    assert can_admit(manager, sequence("d", 16), manager.get_computed_blocks(sequence("d", 16)))


def test_equal_blocks_computed_twice_are_both_kept_and_not_merged():
    manager = caching()
    a, b = sequence("a", 8), sequence("b", 8)
    for seq in (a, b):
        manager.allocate_new_computed_blocks(seq, CacheHit())
    for seq in (a, b):
        compute(manager, seq)
    manager.check_integrity()
    assert manager.get_block_ids("a") == [1, 2]
    assert manager.get_block_ids("b") == [3, 4]
    manager.free(a)
    c = arrive(manager, "c", [7] * 68)  # all that is free, a's blocks included
    assert 1 in manager.get_block_ids(c.seq_id)
    assert num_hit(manager, list(range(9))) == 8, "b's copy is still found"


def test_two_requests_of_one_step_share():
    scheduler = make_scheduler(caching=True)
    for name in "ab":
        scheduler.add_request(request(name, 11))
    plan = step(scheduler)
    assert plan.num_scheduled_tokens == {"a": 11, "b": 3}
    assert plan.new_block_ids == {"a": ([1, 2, 3],), "b": ([1, 2, 4],)}
    assert scheduler.requests["b"].num_cached_tokens == 8


def test_generated_tokens_are_found_and_the_last_one_never():
    scheduler = make_scheduler(caching=True)
    first = request("a", 6, max_tokens=7)
    scheduler.add_request(first)
    run(scheduler)
    tokens = list(first.seqs[0].token_ids)
    assert len(tokens) == 13
    for more, hit in (([], 12), ([5, 5, 5, 5], 12)):
        scheduler.add_request(request("b", tokens + more, max_tokens=1))
        run(scheduler)
        stats = scheduler.kv_manager.prefix_cache.stats
        assert stats.hits == hit
        stats.hits = 0


def test_blocks_of_a_request_that_is_aborted_in_a_step_can_be_found():
    """The device writes them all the same, and before any step that is planned later."""
    scheduler = make_scheduler(caching=True)
    for name in "ab":
        scheduler.add_request(request(name, 12))
    plan = scheduler.schedule()
    assert plan.num_scheduled_tokens == {"a": 12, "b": 4}, "b has a's first two blocks"
    scheduler.finish_requests(["a"], RequestStatus.FINISHED_ABORTED)
    scheduler.check_integrity()
    scheduler.update_from_output(plan, runner_output({"b": 7}))
    scheduler.check_integrity()
    assert num_hit(scheduler.kv_manager, list(range(13))) == 12


def test_in_the_engine(tiny_qwen2):
    llm = LLM(
        str(tiny_qwen2), skip_tokenizer_init=True, block_size=4, max_model_len=64,
        num_gpu_blocks_override=41, trace=True,
    )  # fmt: skip
    off = LLM(
        str(tiny_qwen2), skip_tokenizer_init=True, block_size=4, max_model_len=64,
        num_gpu_blocks_override=41, enable_prefix_caching=False,
    )  # fmt: skip
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    table = [i % 90 for i in range(32)]
    for question, cached in (([91, 92], 0), ([93, 94, 95], 32), ([91, 92], 32)):
        output = llm.generate(table + question, params, use_tqdm=False)[0]
        plain = off.generate(table + question, params, use_tqdm=False)[0]
        assert (output.num_cached_tokens, plain.num_cached_tokens) == (cached, 0)
        assert output.outputs[0].token_ids == plain.outputs[0].token_ids
        llm.llm_engine.check_integrity()
    assert [len(r.block_ids) for r in llm.trace.of(BlocksShared)] == [8, 8]
    assert [r.num_tokens for r in llm.trace.of(Scheduled) if r.kind == "new"] == [34, 3, 2]
    state = llm.trace.state_at(llm.trace.num_steps - 1)
    manager = llm.llm_engine.scheduler.kv_manager
    assert state.cached == {block.block_id for block in manager.prefix_cache}
