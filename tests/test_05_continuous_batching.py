"""The scheduler alone, without a model: equal to vLLM's own on recorded runs, and edge by edge."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minivllm.kv.manager import KVCacheManager
from minivllm.request import Request, RequestStatus
from minivllm.sampling_params import SamplingParams
from minivllm.scheduling.policies import make_policy
from minivllm.scheduling.scheduler import Scheduler

GOLDEN = sorted((Path(__file__).parent / "data" / "golden").glob("*.json.gz"))


def make(
    num_blocks=64,
    block_size=4,
    budget=64,
    max_num_seqs=8,
    max_model_len=64,
    caching=False,
    **kwargs,
):
    manager = KVCacheManager(num_blocks, block_size, caching)
    return Scheduler(manager, budget, max_num_seqs, max_model_len, **kwargs)


def request(request_id, prompt, max_tokens=4, **params):
    prompt = list(range(prompt)) if isinstance(prompt, int) else prompt
    return Request(request_id, prompt, SamplingParams(max_tokens=max_tokens, **params))


def fake_token(seq):
    """The recorded runs' model: a function of all tokens so far."""
    return (sum(seq.token_ids) + len(seq.token_ids)) % 1000 + 5


def sample_for(scheduler, plan):
    """One fake token for every sequence that this plan lets catch up."""
    sampled = {}
    for seq_id, num_new in plan.num_scheduled_tokens.items():
        seq = scheduler.requests[seq_id].seq
        if plan.num_computed_tokens[seq_id] + num_new == seq.num_tokens:
            sampled[seq_id] = fake_token(seq)
    return sampled


def step(scheduler):
    plan = scheduler.schedule()
    scheduler.check_integrity()
    scheduler.update_from_output(plan, sample_for(scheduler, plan))
    scheduler.check_integrity()
    return plan


def run(scheduler, limit=10_000):
    plans = []
    while scheduler.has_unfinished_requests():
        plans.append(step(scheduler))
        assert plans[-1].num_scheduled_tokens, "a step without progress"
        assert len(plans) < limit
    return plans


@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.name.split(".")[0])
def test_decides_what_vllm_decides(path):
    """Every schedule, hit, block id and preemption of vLLM 0.32.0's own scheduler."""
    golden = json.loads(gzip.decompress(path.read_bytes()))
    config = golden["config"]
    scheduler = make(
        config["num_gpu_blocks"],
        config["block_size"],
        config["max_num_batched_tokens"],
        config["max_num_seqs"],
        config["max_model_len"],
        config["enable_prefix_caching"],
        enable_chunked_prefill=config["enable_chunked_prefill"],
        long_prefill_token_threshold=config["long_prefill_token_threshold"],
        policy=make_policy(config["policy"]),
    )
    arrivals = golden["requests"]
    pool = scheduler.kv_manager.block_pool
    for expected in golden["steps"]:
        while arrivals and arrivals[0]["arrival_step"] <= expected["step"]:
            new = arrivals.pop(0)
            scheduler.add_request(
                Request(
                    new["id"],
                    new["prompt_token_ids"],
                    SamplingParams(max_tokens=new["max_tokens"]),
                    arrival_time=new["arrival_step"],
                    priority=new.get("priority", 0),
                )
            )
        if expected.get("idle"):
            assert not scheduler.has_unfinished_requests()
            continue
        plan = scheduler.schedule()
        scheduler.check_integrity()
        assert plan.preempted_req_ids == expected["preempted"]
        assert list(plan.num_scheduled_tokens) == [want["id"] for want in expected["scheduled"]]
        new_ids = [data.seq_id for data in plan.scheduled_new_reqs]
        for want in expected["scheduled"]:
            seq_id = want["id"]
            kind = "new" if seq_id in new_ids else "running"
            assert want["kind"] == ("resumed" if seq_id in plan.resumed_req_ids else kind)
            assert plan.num_scheduled_tokens[seq_id] == want["num_scheduled"]
            assert plan.num_computed_tokens[seq_id] == want["num_computed"]
            assert scheduler.kv_manager.get_block_ids(seq_id) == want["block_ids"]
            if want["kind"] == "running":
                assert plan.new_block_ids.get(seq_id, []) == want["new_block_ids"]
            else:
                assert plan.new_block_ids[seq_id] == want["block_ids"]
                assert plan.num_computed_tokens[seq_id] == want["num_cached"]
        assert [s.seq_id for s in scheduler.running] == expected["running"]
        assert [s.seq_id for s in scheduler.waiting] == expected["waiting"]
        assert pool.num_free_blocks == expected["free_blocks"]
        scheduler.update_from_output(plan, sample_for(scheduler, plan))
        scheduler.check_integrity()
        assert sorted(scheduler.finished_req_ids) == sorted(expected["finished"])
        assert pool.num_free_blocks == expected["free_blocks_after"]
    assert not arrivals
    assert not scheduler.has_unfinished_requests()


@settings(max_examples=80, deadline=None)
@given(
    prompts=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 20)), min_size=1, max_size=12),
    block_size=st.sampled_from([1, 4, 16]),
    budget=st.integers(1, 40),
    max_num_seqs=st.integers(1, 6),
    extra=st.integers(0, 20),
)
def test_any_workload_ends_and_leaves_nothing(prompts, block_size, budget, max_num_seqs, extra):
    num_blocks = -(-50 // block_size) + 1 + extra
    scheduler = make(num_blocks, block_size, budget, max_num_seqs, max_model_len=51)
    requests = [request(str(i), n, max_tokens) for i, (n, max_tokens) in enumerate(prompts)]
    for r in requests:
        scheduler.add_request(r)
    for plan in run(scheduler):
        assert plan.total_num_scheduled_tokens <= budget
        assert len(plan.num_scheduled_tokens) <= max_num_seqs
        assert not set(plan.preempted_req_ids) & plan.num_scheduled_tokens.keys()
    assert scheduler.kv_manager.block_pool.num_free_blocks == num_blocks - 1
    for r, (_, max_tokens) in zip(requests, prompts, strict=True):
        assert r.seq.num_output_tokens == max_tokens
        expected = list(r.prompt_token_ids)
        for token in r.seq.output_token_ids:  # preempted or not, the same tokens
            assert token == (sum(expected) + len(expected)) % 1000 + 5
            expected.append(token)


def test_chunks_and_decodes_share_one_batch():
    scheduler = make(budget=8)
    scheduler.add_request(request("a", 3))
    step(scheduler)
    scheduler.add_request(request("b", 12))
    plan = step(scheduler)
    assert plan.num_scheduled_tokens == {"a": 1, "b": 7}
    plan = step(scheduler)
    assert plan.num_scheduled_tokens == {"a": 1, "b": 5}
    assert scheduler.requests["b"].seq.num_output_tokens == 1


def test_a_chunk_that_ends_on_a_block_boundary_takes_no_spare_block():
    scheduler = make(budget=8, block_size=4)
    scheduler.add_request(request("a", 10))
    plan = step(scheduler)
    assert plan.new_block_ids == {"a": [1, 2]}
    assert step(scheduler).new_block_ids == {"a": [3]}


def test_without_chunked_prefill_a_prompt_is_never_split():
    scheduler = make(budget=12, max_model_len=12, enable_chunked_prefill=False)
    scheduler.add_request(request("a", 7))
    scheduler.add_request(request("b", 6))
    assert step(scheduler).num_scheduled_tokens == {"a": 7}
    assert step(scheduler).num_scheduled_tokens == {"a": 1, "b": 6}


def test_nobody_overtakes_the_first_in_the_queue():
    scheduler = make(num_blocks=5, block_size=4, max_model_len=17)
    scheduler.add_request(request("a", 8, max_tokens=4))
    step(scheduler)
    scheduler.add_request(request("big", 12))
    scheduler.add_request(request("small", 1))
    assert step(scheduler).num_scheduled_tokens == {"a": 1}


def test_a_prompt_is_admitted_only_if_the_whole_of_it_fits():
    scheduler = make(num_blocks=7, block_size=4, budget=4, max_model_len=25)
    scheduler.add_request(request("a", 12, max_tokens=2))
    scheduler.add_request(request("b", 16, max_tokens=2))
    for _ in range(3):
        assert list(step(scheduler).num_scheduled_tokens) == ["a"]
    assert [s.seq_id for s in scheduler.waiting] == ["b"]


def test_the_last_admitted_gives_way_and_comes_back_first():
    scheduler = make(num_blocks=5, block_size=4, max_model_len=16)
    for name in "abc":
        scheduler.add_request(request(name, 4, max_tokens=6))
    step(scheduler)  # a, b, c fill one block each; one is free
    plan = step(scheduler)  # a takes the last; b needs one: c gives way
    assert plan.num_scheduled_tokens == {"a": 1, "b": 1}
    assert plan.preempted_req_ids == ["c"]
    seq = scheduler.requests["c"].seq
    assert (seq.status, seq.num_computed_tokens) == (RequestStatus.PREEMPTED, 0)
    assert seq.num_output_tokens == 1, "what it sampled is kept"
    scheduler.add_request(request("d", 1))
    assert [s.seq_id for s in scheduler.waiting] == ["c", "d"]
    plans = run(scheduler)
    back = next(plan for plan in plans if "c" in plan.num_scheduled_tokens)
    assert back.num_scheduled_tokens["c"] == 5, "prompt and output are computed again"
    assert not back.scheduled_new_reqs or back.scheduled_new_reqs[0].seq_id == "d"


def test_a_sequence_may_be_its_own_victim():
    scheduler = make(num_blocks=4, block_size=4, max_model_len=13)
    scheduler.add_request(request("a", 4, max_tokens=8))
    scheduler.add_request(request("b", 8, max_tokens=4))
    step(scheduler)
    plan = step(scheduler)  # a needs a block and none is free: b gives way
    assert plan.preempted_req_ids == ["b"]
    run(scheduler)


def test_blocks_freed_by_a_finish_serve_the_next_step():
    scheduler = make(num_blocks=3, block_size=4, max_model_len=9)
    scheduler.add_request(request("a", 8, max_tokens=1))
    scheduler.add_request(request("b", 8, max_tokens=1))
    assert list(step(scheduler).num_scheduled_tokens) == ["a"]
    assert list(step(scheduler).num_scheduled_tokens) == ["b"]


def test_a_sequence_ends_at_max_model_len():
    scheduler = make(max_model_len=10)
    scheduler.add_request(request("a", 7, max_tokens=None))
    seq = scheduler.requests["a"].seq
    run(scheduler)
    assert (seq.num_tokens, seq.status.finish_reason) == (10, "length")


@pytest.mark.parametrize("when", ["waiting", "running", "preempted"])
def test_abort_frees_everything(when):
    scheduler = make(num_blocks=5, block_size=4, max_model_len=16)
    for name in "abc":
        scheduler.add_request(request(name, 4, max_tokens=6))
    for _ in range({"waiting": 0, "running": 1, "preempted": 2}[when]):
        step(scheduler)
    seq = scheduler.requests["c"].seq
    assert seq.status.name.lower() == when
    scheduler.finish_request("c", RequestStatus.FINISHED_ABORTED)
    scheduler.check_integrity()
    assert seq.status.finish_reason == "abort"
    assert "c" not in scheduler.requests
    scheduler.finish_request("c", RequestStatus.FINISHED_ABORTED)  # again: ignored
    run(scheduler)
    assert scheduler.kv_manager.block_pool.num_free_blocks == 4


def test_abort_between_plan_and_update_is_harmless():
    scheduler = make()
    scheduler.add_request(request("a", 4))
    plan = scheduler.schedule()
    scheduler.finish_request("a", RequestStatus.FINISHED_ABORTED)
    assert scheduler.update_from_output(plan, {"a": 7}) == []
    scheduler.check_integrity()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (request("a", 3), "request_id 'a' is in use"),
        (request("x", 0), "prompt is empty"),
        (request("x", 20), "has 20 tokens, but max_model_len is 20"),
        (request("x", 10, max_tokens=9), "can grow to 19 tokens, but the whole KV cache holds 16"),
    ],
)
def test_a_request_that_could_never_run_is_refused(bad, message):
    scheduler = make(num_blocks=5, block_size=4, max_model_len=20)
    scheduler.add_request(request("a", 3))
    with pytest.raises(ValueError, match=message):
        scheduler.add_request(bad)
    assert list(scheduler.requests) == ["a"]
    run(scheduler)


@pytest.mark.parametrize(
    ("token", "params", "reason"),
    [
        (99, {}, ("stop", None)),
        (99, {"ignore_eos": True, "max_tokens": 9}, None),
        (99, {"ignore_eos": True, "stop_token_ids": [99]}, ("stop", 99)),
        (7, {"stop_token_ids": [7, 99]}, ("stop", 7)),
        (99, {"stop_token_ids": [7, 99]}, ("stop", None)),
        (5, {"max_tokens": 1}, ("length", None)),
        (99, {"max_tokens": 1}, ("stop", None)),
    ],
)
def test_what_ends_a_sequence_and_in_which_order(token, params, reason):
    scheduler = make()
    r = Request("a", [1, 2, 3], SamplingParams(**params), eos_token_ids=frozenset({99}))
    scheduler.add_request(r)
    scheduler.update_from_output(scheduler.schedule(), {"a": token})
    finished = (r.seq.status.finish_reason, r.seq.stop_reason) if r.seq.status.is_finished else None
    assert finished == reason


def test_a_stop_string_comes_before_the_length():
    scheduler = make(find_stop_string=lambda seq: "END" if seq.token_ids[-1] == 8 else None)
    scheduler.add_request(request("a", 3, max_tokens=1))
    seq = scheduler.requests["a"].seq
    scheduler.update_from_output(scheduler.schedule(), {"a": 8})
    assert (seq.status.finish_reason, seq.stop_reason) == ("stop", "END")
