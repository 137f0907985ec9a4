"""Swapping: a preempted request's blocks wait on the host, shared as they were."""

import pytest
from helpers import make_llm, make_swapping, request, run, step, used_blocks

from minivllm import SamplingParams
from minivllm.request import RequestStatus
from minivllm.trace.records import BlockCopied, SwappedIn, SwappedOut


def test_swapped_out_and_back_with_nothing_computed_twice():
    scheduler = make_swapping(num_blocks=5)
    for name in "ab":
        scheduler.add_request(request(name, 8, max_tokens=6))
    step(scheduler)
    plan = step(scheduler)
    assert [(s.src_block_id, s.dst_block_id) for s in plan.swaps_out] == [(3, 1), (4, 2)]
    assert plan.preempted_req_ids == ["b"]
    assert scheduler.sequences["b"].num_computed_tokens == 8
    assert used_blocks(scheduler) == (3, 2)
    plans = run(scheduler)
    back = next(plan for plan in plans if plan.swaps_in)
    assert [s.src_block_id for s in back.swaps_in] == [1, 2]
    assert back.resumed_req_ids == ["b"]
    assert back.num_scheduled_tokens == {"b": 1}
    assert back.num_computed_tokens == {"b": 8}
    assert used_blocks(scheduler) == (0, 0)


def test_the_swapped_come_back_before_anyone_new_begins():
    scheduler = make_swapping(num_blocks=5)
    for name in "ab":
        scheduler.add_request(request(name, 8, max_tokens=6))
    step(scheduler)
    step(scheduler)
    scheduler.add_request(request("new", 1, max_tokens=1))
    order = [list(plan.num_scheduled_tokens) for plan in run(scheduler)]
    first_with_new = next(batch for batch in order if "new" in batch)
    assert order.index(first_with_new) == next(i for i, batch in enumerate(order) if "b" in batch)
    assert first_with_new == ["b", "new"]


def test_too_little_host_memory_falls_back_to_recomputation(capsys):
    scheduler = make_swapping(num_blocks=5, host=1)
    for name in "ab":
        scheduler.add_request(request(name, 8, max_tokens=6))
    plans = run(scheduler)
    assert not [plan for plan in plans if plan.swaps_out]
    assert scheduler.num_preemptions > 0
    out = capsys.readouterr().out
    assert "cannot be swapped out: 1 host blocks are free" in out
    assert "Preemptions so far: 1" in out


@pytest.mark.parametrize(("n", "swaps"), [(1, False), (2, True)])
def test_by_default_one_sequence_is_computed_again_and_siblings_are_swapped(n, swaps):
    scheduler = make_swapping(num_blocks=6 + n, host=20, mode=None)
    scheduler.add_request(request("first", 8, max_tokens=15))
    scheduler.add_request(request("second", 6, max_tokens=6, n=n))
    plans = run(scheduler)
    assert scheduler.num_preemptions > 0
    assert any(plan.swaps_out for plan in plans) == swaps


def test_siblings_share_on_the_host_and_again_when_they_are_back():
    scheduler = make_swapping(num_blocks=8, host=20)
    scheduler.add_request(request("first", 12, max_tokens=16))
    scheduler.add_request(request("second", 8, max_tokens=5, n=2))
    shared = None
    while scheduler.has_unfinished_requests():
        plan = step(scheduler)
        if plan.swaps_out:
            tables = scheduler.kv_manager.swap_space.tables
            shared = [a is b for a, b in zip(*tables.values(), strict=True)]
            assert shared[:2] == [True, True]
        if plan.swaps_in:
            a, b = (scheduler.kv_manager.block_tables[s] for s in ("second", "second/1"))
            assert a.blocks[0] is b.blocks[0]
            assert a.blocks[0].ref_cnt == 2
    assert shared is not None
    assert used_blocks(scheduler) == (0, 0)


def test_what_comes_back_registers_no_duplicates():
    scheduler = make_swapping(num_blocks=6, host=8, caching=True)
    for name, token in (("a", 1), ("b", 2)):
        scheduler.add_request(request(name, [token] * 8, max_tokens=8))
    while scheduler.has_unfinished_requests():
        plan = step(scheduler)
        if plan.swaps_in:
            table = scheduler.kv_manager.block_tables["b"]
            assert [block.block_hash for block in table.blocks[:2]] == [None, None]
    assert scheduler.num_preemptions > 0


@pytest.mark.parametrize("when", [2, 3])
def test_abort_on_the_host_frees_both_sides(when):
    scheduler = make_swapping(num_blocks=5)
    for name in "ab":
        scheduler.add_request(request(name, 8, max_tokens=6))
    for _ in range(when):
        step(scheduler)
    assert used_blocks(scheduler)[1] == 2
    scheduler.finish_requests(["b"], RequestStatus.FINISHED_ABORTED)
    scheduler.check_integrity()
    assert used_blocks(scheduler)[1] == 0
    run(scheduler)
    assert used_blocks(scheduler) == (0, 0)


def test_samples_come_back_from_the_host_with_all_they_had(tiny_qwen2):
    outputs = []
    for num_blocks in (400, 31):
        llm = make_llm(
            tiny_qwen2, block_size=4, max_model_len=40, max_num_batched_tokens=32, trace=True,
            num_gpu_blocks_override=num_blocks, enable_prefix_caching=False,
        )  # fmt: skip
        params = SamplingParams(n=3, temperature=1.0, seed=3, max_tokens=22, ignore_eos=True)
        prompts = [[i, i + 1, i + 2, 5, 6, 7] for i in range(3)]
        runs = llm.generate(prompts, params, use_tqdm=False)
        outputs.append([[c.token_ids for c in o.outputs] for o in runs])
        assert bool(list(llm.trace.of(SwappedOut))) == (num_blocks == 31)
    assert outputs[0] == outputs[1]


def test_siblings_that_still_share_their_last_block_copy_it_when_they_are_back(tiny_qwen2):
    """Thrown out between the fork and the first write, they write in the step of their return."""
    outputs = []
    for num_blocks in (100, 7):
        llm = make_llm(
            tiny_qwen2, block_size=4, max_model_len=24, trace=True,
            num_gpu_blocks_override=num_blocks, enable_prefix_caching=False,
        )  # fmt: skip
        params = [
            SamplingParams(temperature=0, max_tokens=12, ignore_eos=True),
            SamplingParams(n=3, temperature=1.0, seed=3, max_tokens=3, ignore_eos=True),
        ]
        prompts = [list(range(8)), list(range(20, 26))]
        runs = llm.generate(prompts, params, use_tqdm=False)
        outputs.append([[c.token_ids for c in o.outputs] for o in runs])
    assert len(list(llm.trace.of(SwappedOut))) == 3
    back = next(llm.trace.of(SwappedIn)).step
    assert back in {record.step for record in llm.trace.of(BlockCopied)}
    assert outputs[0] == outputs[1]
