"""Several samples of one prompt: computed once, shared, copied only before a write."""

import random

import pytest
from helpers import CLEAR, examples, make_llm, make_scheduler, request, run, step
from hypothesis import given
from hypothesis import strategies as st

from minivllm import SamplingParams
from minivllm.lab import oracle
from minivllm.request import RequestStatus
from minivllm.trace.records import BlockCopied, Forked, Scheduled


def ref_counts(scheduler, seq_id):
    return [block.ref_cnt for block in scheduler.kv_manager.block_tables[seq_id].blocks]


def test_a_fork_takes_nothing_and_copies_nothing():
    scheduler = make_scheduler()
    scheduler.add_request(request("a", 10, n=3))
    before = scheduler.kv_manager.block_pool.num_free_blocks
    plan = step(scheduler)
    assert plan.forks == {"a": ["a/1", "a/2"]}
    assert plan.kv_cache_block_copies == []
    assert scheduler.kv_manager.block_pool.num_free_blocks == before - 3
    assert [seq.seq_id for seq in scheduler.running] == ["a", "a/1", "a/2"]
    assert ref_counts(scheduler, "a/2") == [3, 3, 3]


def test_a_finished_sequence_cannot_be_forked():
    scheduler = make_scheduler()
    scheduler.add_request(request("a", 10, max_tokens=1))
    parent = scheduler.sequences["a"]
    step(scheduler)
    with pytest.raises(ValueError, match=r"sequence 'a' \(FINISHED_LENGTH_CAPPED\) has no blocks"):
        scheduler.kv_manager.fork(parent, parent.fork(1))
    scheduler.check_integrity()


@pytest.mark.parametrize("n", [2, 3, 5])
def test_k_writers_of_a_partly_filled_block_cost_k_minus_1_copies(n):
    scheduler = make_scheduler()
    scheduler.add_request(request("a", 10, n=n, max_tokens=9))
    copies = [copy for plan in run(scheduler) for copy in plan.kv_cache_block_copies]
    assert len(copies) == n - 1
    assert {copy.src_block_id for copy in copies} == {3}
    assert len({copy.dst_block_id for copy in copies}) == n - 1


def test_the_last_writer_writes_in_place():
    scheduler = make_scheduler()
    scheduler.add_request(request("a", 10, n=2))
    step(scheduler)
    plan = step(scheduler)
    assert [(c.seq_id, c.src_block_id) for c in plan.kv_cache_block_copies] == [("a", 3)]
    assert scheduler.kv_manager.get_block_ids("a/1") == [1, 2, 3]
    assert ref_counts(scheduler, "a/1") == [2, 2, 1]
    assert ref_counts(scheduler, "a") == [2, 2, 1]


def test_a_full_block_is_never_copied():
    scheduler = make_scheduler()
    scheduler.add_request(request("a", 8, n=4, max_tokens=9))
    assert not [copy for plan in run(scheduler) for copy in plan.kv_cache_block_copies]


def test_the_prompt_is_computed_once():
    scheduler = make_scheduler(budget=4)
    scheduler.add_request(request("a", 10, n=3, max_tokens=5))
    plans = run(scheduler)
    assert sum(plan.total_num_scheduled_tokens for plan in plans) == 10 + 3 * 4
    assert [p.forks for p in plans if p.forks] == [{"a": ["a/1", "a/2"]}]


def test_all_samples_are_counted_before_they_are_there():
    scheduler = make_scheduler(max_num_seqs=4, budget=8)
    scheduler.add_request(request("a", 20, n=3))
    scheduler.add_request(request("b", 4, n=2))
    scheduler.add_request(request("c", 4))
    for _ in range(2):
        assert list(step(scheduler).num_scheduled_tokens) == ["a"]
    run(scheduler)


def test_a_small_budget_serves_some_siblings_now_and_others_next():
    scheduler = make_scheduler(budget=2)
    scheduler.add_request(request("a", 2, n=3, max_tokens=3))
    step(scheduler)
    assert list(step(scheduler).num_scheduled_tokens) == ["a", "a/1"]
    run(scheduler)


def test_preemption_takes_the_whole_request_and_it_all_comes_back():
    scheduler = make_scheduler(num_blocks=8, block_size=4, max_model_len=20, caching=True)
    scheduler.add_request(request("first", 4, max_tokens=14))
    scheduler.add_request(request("a", [9] * 6, n=3, max_tokens=5))
    plans = run(scheduler)
    preempting = [plan for plan in plans if plan.preempted_req_ids]
    assert preempting
    assert all(plan.preempted_req_ids == ["a", "a/1", "a/2"] for plan in preempting)
    back = next(plan for plan in plans if plan.resumed_req_ids)
    assert back.resumed_req_ids == ["a", "a/1", "a/2"]
    assert scheduler.kv_manager.block_pool.num_free_blocks == 7


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_abort_ends_all_samples(steps):
    scheduler = make_scheduler()
    waiting = request("a", 6, n=3)
    scheduler.add_request(waiting)
    for _ in range(steps):
        step(scheduler)
    scheduler.finish_requests(["a"], RequestStatus.FINISHED_ABORTED)
    scheduler.check_integrity()
    assert {seq.status.finish_reason for seq in waiting.seqs} == {"abort"}
    assert not scheduler.has_unfinished_requests()
    assert scheduler.kv_manager.block_pool.num_free_blocks == 63


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"n": 9}, "n is 9, but max_num_seqs is 8"),
        ({"n": 5, "max_tokens": 30}, r"can grow to 5 x 40 tokens, which takes 50 blocks of 4"),
    ],
)
def test_samples_that_could_never_run_together_are_refused(kwargs, message):
    scheduler = make_scheduler(num_blocks=40)
    with pytest.raises(ValueError, match=message):
        scheduler.add_request(request("a", 10, **kwargs))
    assert not scheduler.has_unfinished_requests()


def test_with_a_prefix_cache_the_shared_prompt_counts_once():
    kwargs = {"n": 5, "max_tokens": 16}
    assert not make_scheduler(num_blocks=30, caching=False).kv_manager.prefix_cache
    with pytest.raises(ValueError, match="45 blocks"):
        make_scheduler(num_blocks=30).add_request(request("a", 20, **kwargs))
    scheduler = make_scheduler(num_blocks=30, caching=True)
    scheduler.add_request(request("a", 20, **kwargs))
    run(scheduler)


def test_the_ids_of_samples_to_come_are_taken():
    scheduler = make_scheduler()
    scheduler.add_request(request("a", 4, n=3))
    with pytest.raises(ValueError, match="request_id 'a/2' is in use"):
        scheduler.add_request(request("a/2", 4))
    run(scheduler)
    scheduler.add_request(request("a/2", 4))


@examples(80)
@given(
    workload=st.lists(
        st.tuples(st.integers(1, 14), st.integers(1, 12), st.integers(1, 4)), min_size=1, max_size=7
    ),
    block_size=st.sampled_from([1, 3, 4]),
    budget=st.integers(1, 30),
    caching=st.booleans(),
    extra=st.integers(0, 12),
    policy=st.sampled_from(["fcfs", "priority", "prefill_first", "static"]),
)
def test_any_workload_with_samples_ends_and_leaves_nothing(
    workload, block_size, budget, caching, extra, policy
):
    from minivllm.scheduling.policies import make_policy

    num_blocks = 4 * -(-25 // block_size) + 1 + extra
    scheduler = make_scheduler(
        num_blocks, block_size, budget, 4, 26, caching, policy=make_policy(policy)
    )  # fmt: skip
    requests = [
        request(str(i), [i % 2] * p, max_tokens, n=n)
        for i, (p, max_tokens, n) in enumerate(workload)
    ]
    for r in requests:
        scheduler.add_request(r)
    run(scheduler)
    assert scheduler.kv_manager.block_pool.num_free_blocks == num_blocks - 1
    for r, (_, max_tokens, n) in zip(requests, workload, strict=True):
        assert [seq.num_output_tokens for seq in r.seqs] == [max_tokens] * n
        assert len({tuple(seq.token_ids) for seq in r.seqs}) == 1  # the fake model is greedy


@pytest.mark.slow
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("num_blocks", [31, 300])
def test_samples_equal_the_oracles(tiny_qwen2, caching, num_blocks):
    """Tight or roomy, each sample is what a request of its own would have drawn."""
    llm = make_llm(
        tiny_qwen2, block_size=4, max_model_len=40, max_num_batched_tokens=17, max_num_seqs=9,
        num_gpu_blocks_override=num_blocks, enable_prefix_caching=caching, trace=True,
    )  # fmt: skip
    engine, rng, requests, outputs = llm.llm_engine, random.Random(3), {}, {}
    for i in range(8):
        prompt = [rng.randrange(90) for _ in range(rng.randint(1, 15))]
        params = SamplingParams(
            n=rng.randint(1, 3), temperature=1.0, seed=rng.choice([None, 5]), ignore_eos=True,
            max_tokens=rng.randint(8, 24),
        )  # fmt: skip
        requests[str(i)] = engine.input_processor.make_request(str(i), prompt, params)
        engine.submit(requests[str(i)])
    while engine.has_unfinished_requests():
        outputs |= {o.request_id: o for o in engine.step()}
        engine.check_integrity()
    if num_blocks == 31:
        assert engine.scheduler.num_preemptions > 0
    for request_id, r in requests.items():
        assert outputs[request_id].finished
        assert len(outputs[request_id].outputs) == r.sampling_params.n
        for got in outputs[request_id].outputs:
            want = oracle.run(engine.model_runner.model, r, 40, got.index)
            unclear = next((i for i, m in enumerate(want.margins) if m < CLEAR), None)
            upto = len(want.token_ids) if unclear is None else unclear
            assert got.token_ids[:upto] == want.token_ids[:upto]
    forks = sum(r.sampling_params.n - 1 for r in requests.values())
    assert len(list(llm.trace.of(Forked))) == forks


def test_the_trace_shows_one_prefill_and_the_sharing(tiny_qwen2):
    llm = make_llm(tiny_qwen2, block_size=4, max_model_len=40, trace=True,
                   num_gpu_blocks_override=60)  # fmt: skip
    params = SamplingParams(n=4, temperature=1.0, seed=1, max_tokens=8, ignore_eos=True)
    output = llm.generate([list(range(10))], params, use_tqdm=False)[0]
    assert [c.index for c in output.outputs] == [0, 1, 2, 3]
    assert len({tuple(c.token_ids) for c in output.outputs}) == 4
    assert [r.num_tokens for r in llm.trace.of(Scheduled) if r.kind == "new"] == [10]
    assert len(list(llm.trace.of(BlockCopied))) == 3
    shared = llm.trace.state_at(0).ref_counts
    assert shared == {1: 4, 2: 4, 3: 4}
    assert llm.trace.state_at(1, "schedule").ref_counts[1] == 4
    last = llm.trace.state_at(llm.trace.num_steps - 1)
    assert last.ref_counts == {}
    tokens = [s.token_ids[10:] for s in last.sequences.values()]
    assert tokens == [c.token_ids for c in output.outputs]


def test_text_of_every_sample(tiny_chat):
    from minivllm import LLM

    llm = LLM(str(tiny_chat), num_gpu_blocks_override=200)
    params = SamplingParams(n=3, temperature=1.0, seed=4, max_tokens=9, ignore_eos=True)
    output = llm.generate("abc", params, use_tqdm=False)[0]
    for completion in output.outputs:
        want = llm.get_tokenizer().decode(completion.token_ids, skip_special_tokens=True)
        assert completion.text == want.rstrip("\N{REPLACEMENT CHARACTER}")
        assert completion.finish_reason == "length"
    llm.llm_engine.check_integrity()


def test_greedy_samples_would_all_be_the_same():
    with pytest.raises(ValueError, match="n must be 1 for greedy sampling"):
        SamplingParams(n=2, temperature=0)


def test_siblings_that_share_only_a_chunk_after_a_preemption_are_refused():
    """Their first one computes a chunk of 8; the others could count on no more of the prompt."""
    scheduler = make_scheduler(17, 4, 8, 8, 80, caching=True, preemption_mode="recompute")
    scheduler.add_request(request("long", 4, max_tokens=60))
    with pytest.raises(ValueError, match=r"can grow to 2 x 48 tokens, which takes 22 blocks of 4"):
        scheduler.add_request(request("pair", 32, max_tokens=16, n=2))
    run(scheduler)


@pytest.mark.parametrize("num_blocks", [39, 40, 41])
def test_siblings_longer_than_a_chunk_come_back(num_blocks):
    scheduler = make_scheduler(num_blocks, 4, 8, 8, 80, caching=True, preemption_mode="recompute")
    scheduler.add_request(request("long", 4, max_tokens=60))
    scheduler.add_request(request("pair", 32, max_tokens=48, n=2))
    run(scheduler)
    assert scheduler.num_preemptions > 0


def test_siblings_come_back_though_together_they_exceed_an_unsplit_step():
    scheduler = make_scheduler(
        42, 4, 64, 8, 64, enable_chunked_prefill=False, preemption_mode="recompute"
    )  # fmt: skip
    scheduler.add_request(request("one", 8, max_tokens=55))
    scheduler.add_request(request("four", 8, max_tokens=30, n=4))
    run(scheduler)
    assert scheduler.num_preemptions > 0
