"""A preempted request comes back as it was; what is swapped: test_06b_swap.py."""

import random

import pytest
from helpers import (
    assert_same_free_queue,
    examples,
    make_llm,
    make_swapping,
    request,
    run_and_compare,
    step,
    used_blocks,
)
from hypothesis import example, given
from hypothesis import strategies as st

from minivllm import LLM, SamplingParams
from minivllm.scheduling.policies import make_policy
from minivllm.trace.records import SwappedIn, SwappedOut


@pytest.mark.slow
@examples(120)
@example(
    workload=[(1, 10, 2), (1, 1, 1), (1, 1, 1), (2, 10, 2), (1, 1, 1), (1, 1, 1), (2, 10, 3)],
    block_size=3, budget=7, caching=False, extra=0, host=0, mode=None, policy="priority",
)  # fmt: skip
@given(
    workload=st.lists(
        st.tuples(st.integers(1, 14), st.integers(1, 12), st.integers(1, 3)), min_size=1, max_size=7
    ),
    block_size=st.sampled_from([1, 3, 4]),
    budget=st.integers(1, 30),
    caching=st.booleans(),
    extra=st.integers(0, 12),
    host=st.integers(0, 60),
    mode=st.sampled_from([None, "swap", "recompute"]),
    policy=st.sampled_from(["fcfs", "priority", "prefill_first", "static"]),
)
def test_any_workload_ends_with_both_pools_empty(
    workload, block_size, budget, caching, extra, host, mode, policy
):
    num_blocks = 3 * -(-26 // block_size) + 1 + extra
    scheduler = make_swapping(
        num_blocks, host, mode, block_size, budget, caching, policy=make_policy(policy)
    )  # fmt: skip
    requests = []
    for i, (prompt, max_tokens, n) in enumerate(workload):
        requests.append(request(str(i), [i % 2] * prompt, max_tokens, n=n))
        if policy == "priority":
            requests[-1].priority = i % 3
        scheduler.add_request(requests[-1])
    computed = True
    while scheduler.has_unfinished_requests():
        plan = step(scheduler)
        # Who is first in line and the least important (or the first of equals) can only give way to
        # itself, and that step computes nothing, as in vLLM. The next one does.
        assert plan.num_scheduled_tokens or (plan.preempted_req_ids and computed)
        computed = bool(plan.num_scheduled_tokens)
        state = scheduler.trace.state_at(scheduler.trace.num_steps - 1)
        tables = scheduler.kv_manager.block_tables
        held = {s.seq_id: s.block_ids for s in state.sequences.values() if s.block_ids}
        assert held == {seq_id: t.block_ids for seq_id, t in tables.items() if t.blocks}
        assert state.running == [seq.seq_id for seq in scheduler.running]
        assert_same_free_queue(state, scheduler.kv_manager)
    assert used_blocks(scheduler) == (0, 0)
    for r, (_, max_tokens, n) in zip(requests, workload, strict=True):
        assert [seq.num_output_tokens for seq in r.seqs] == [max_tokens] * n


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["swap", "recompute"])
@pytest.mark.parametrize("caching", [True, False])
def test_a_third_of_the_memory_changes_no_token(tiny_qwen2, mode, caching):
    llm = make_llm(
        tiny_qwen2, block_size=4, max_num_batched_tokens=24, max_model_len=48, trace=True,
        num_gpu_blocks_override=17, preemption_mode=mode, enable_prefix_caching=caching,
    )  # fmt: skip
    rng = random.Random(1)
    prompts = [[rng.randrange(90) for _ in range(rng.randint(2, 9))] for _ in range(5)]
    params = [
        SamplingParams(temperature=t, seed=7, max_tokens=30, ignore_eos=True)
        for t in (0, 1, 0, 1, 2)
    ]
    run_and_compare(llm, prompts, params)
    assert llm.llm_engine.scheduler.num_preemptions > 0
    swapped = sorted(record.seq_id for record in llm.trace.of(SwappedOut))
    assert sorted(record.seq_id for record in llm.trace.of(SwappedIn)) == swapped
    assert bool(swapped) == (mode == "swap")


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"swap_space": -1}, "swap_space must be a number of GiB from 0 to"),
        (
            {"swap_space": 1e9},
            "swap_space must be a number of GiB from 0 to .* that this machine has",
        ),
        ({"preemption_mode": "panic"}, "preemption_mode must be 'recompute', 'swap' or None"),
    ],
)
def test_bad_arguments(tiny_qwen2, kwargs, message):
    with pytest.raises(ValueError, match=message):
        LLM(str(tiny_qwen2), skip_tokenizer_init=True, **kwargs)
