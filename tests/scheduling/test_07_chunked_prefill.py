"""A prompt computed in pieces: what fits into a step, and what a chunk may not do."""

import pytest
from helpers import make_scheduler, request, step


def test_chunks_and_decodes_share_one_batch():
    scheduler = make_scheduler(budget=8)
    scheduler.add_request(request("a", 3))
    step(scheduler)
    scheduler.add_request(request("b", 12))
    plan = step(scheduler)
    assert plan.num_scheduled_tokens == {"a": 1, "b": 7}
    plan = step(scheduler)
    assert plan.num_scheduled_tokens == {"a": 1, "b": 5}
    assert scheduler.sequences["b"].num_output_tokens == 1


def test_a_chunk_that_ends_on_a_block_boundary_takes_no_spare_block():
    scheduler = make_scheduler(budget=8, block_size=4)
    scheduler.add_request(request("a", 10))
    plan = step(scheduler)
    assert plan.new_block_ids == {"a": ([1, 2],)}
    assert step(scheduler).new_block_ids == {"a": ([3],)}


def test_without_chunked_prefill_a_prompt_is_never_split():
    scheduler = make_scheduler(budget=12, max_model_len=12, enable_chunked_prefill=False)
    scheduler.add_request(request("a", 7))
    scheduler.add_request(request("b", 6))
    assert step(scheduler).num_scheduled_tokens == {"a": 7}
    assert step(scheduler).num_scheduled_tokens == {"a": 1, "b": 6}


def test_a_long_prompt_leaves_room_for_others():
    scheduler = make_scheduler(budget=32, long_prefill_token_threshold=6)
    scheduler.add_request(request("long", 20))
    scheduler.add_request(request("short", 5))
    assert step(scheduler).num_scheduled_tokens == {"long": 6, "short": 5}
    assert step(scheduler).num_scheduled_tokens == {"long": 6, "short": 1}


def test_alone_a_long_prompt_takes_all_of_the_budget():
    scheduler = make_scheduler(budget=32, long_prefill_token_threshold=6)
    scheduler.add_request(request("long", 20))
    assert step(scheduler).num_scheduled_tokens == {"long": 20}


@pytest.mark.parametrize("budget", [1, 2, 3, 7, 19, 20, 21])
def test_only_the_last_chunk_draws_a_token(budget):
    scheduler = make_scheduler(budget=budget)
    scheduler.add_request(request("a", 20, max_tokens=3))
    (seq,) = scheduler.requests["a"].seqs
    computed = 0
    while scheduler.has_unfinished_requests():
        computed += step(scheduler).num_scheduled_tokens["a"]
        assert seq.num_output_tokens == max(0, computed - 20 + 1)
    assert computed == 20 + 3 - 1
