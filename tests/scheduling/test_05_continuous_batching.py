"""The scheduler alone, without a model: equal to vLLM's own on recorded runs, and edge by edge."""

import json
import subprocess
import sys

import pytest
from helpers import assert_decides_as, examples, make_scheduler, request, run, step
from hypothesis import given
from hypothesis import strategies as st

from minivllm.lab.sim.loop import runner_output
from minivllm.lab.sim.recordings import GOLDEN, LORA_GOLDEN, POOLING_GOLDEN, load_recording
from minivllm.request import FINISH_REASONS, Request, RequestStatus
from minivllm.sampling_params import SamplingParams
from minivllm.scheduling.policies import SchedulingPolicy, make_policy
from minivllm.sim import replay

RECORDINGS = [*GOLDEN, *LORA_GOLDEN, *POOLING_GOLDEN]


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda p: p.name.split(".")[0])
def test_decides_what_vllm_decides(path):
    """Every schedule, hit, block id and preemption of vLLM 0.32.0's own scheduler."""
    assert_decides_as(path)


@pytest.mark.slow
def test_replay_as_a_command(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "minivllm.sim", "replay", GOLDEN[0], "--out", tmp_path / "out.json"]
    )
    assert done.returncode == 0
    assert json.loads((tmp_path / "out.json").read_text()) == load_recording(GOLDEN[0])
    (tmp_path / "bad.json").write_text('{"config": {}, "requests": []}')
    done = subprocess.run(
        [sys.executable, "-m", "minivllm.sim", "replay", tmp_path / "bad.json", "--out", "x"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "config['block_size'] must be given" in done.stderr


@pytest.mark.parametrize("key", ["id", "arrival_step", "prompt_token_ids", "max_tokens"])
def test_a_recording_that_lacks_a_key_is_refused(key):
    workload = load_recording(GOLDEN[0])
    del workload["requests"][1][key]
    with pytest.raises(ValueError, match=rf"requests\[1\]\['{key}'\] must be given"):
        replay(workload)


def test_a_recording_with_a_negative_length_is_refused():
    workload = load_recording(GOLDEN[0])
    workload["requests"][2]["max_tokens"] = -1
    with pytest.raises(ValueError, match=r"requests\[2\]\['max_tokens'\] must be .* got -1"):
        replay(workload)


class ShortestFirst(SchedulingPolicy):
    """A policy of one's own: a short prompt need not wait for a long one."""

    def key(self, request):
        return len(request.prompt_token_ids)


def test_a_policy_of_ones_own():
    scheduler = make_scheduler(max_num_seqs=1, policy=ShortestFirst())
    for name, length in (("long", 9), ("short", 2), ("middle", 5)):
        scheduler.add_request(request(name, length, max_tokens=1))
    assert [next(iter(p.num_scheduled_tokens)) for p in run(scheduler)] == [
        "short", "middle", "long",
    ]  # fmt: skip


def test_prefill_first_stalls_the_decodes():
    scheduler = make_scheduler(budget=16, policy=make_policy("prefill_first"))
    scheduler.add_request(request("a", 4))
    step(scheduler)
    scheduler.add_request(request("b", 8))
    assert step(scheduler).num_scheduled_tokens == {"b": 8}
    assert step(scheduler).num_scheduled_tokens == {"a": 1, "b": 1}


def test_static_batching_waits_for_the_whole_batch():
    scheduler = make_scheduler(policy=make_policy("static"))
    scheduler.add_request(request("a", 4, max_tokens=2))
    scheduler.add_request(request("b", 4, max_tokens=4))
    step(scheduler)
    scheduler.add_request(request("c", 4))
    batches = [list(plan.num_scheduled_tokens) for plan in run(scheduler)]
    assert batches[:4] == [["a", "b"], ["b"], ["b"], ["c"]]


def test_the_least_important_gives_way_even_if_it_was_scheduled_in_this_step():
    scheduler = make_scheduler(
        num_blocks=4, max_model_len=13, caching=True, policy=make_policy("priority")
    )
    for name, length, priority in (("low", 4, 9), ("high", 8, 1)):
        scheduler.add_request(request(name, length, max_tokens=4))
        scheduler.requests[name].priority = priority
        step(scheduler)
    plan = scheduler.schedule()
    scheduler.check_integrity()
    assert plan.preempted_req_ids == ["low"]
    assert "low" not in plan.num_scheduled_tokens
    assert plan.num_scheduled_tokens == {"high": 1}
    assert scheduler.token_budget == 63


def test_a_priority_needs_the_policy():
    scheduler = make_scheduler()
    refused = Request("a", [1], SamplingParams(), priority=3)
    with pytest.raises(ValueError, match="priority is 3, but scheduling_policy is not 'priority'"):
        scheduler.add_request(refused)


def test_an_unknown_policy_is_refused():
    with pytest.raises(ValueError, match=r"scheduling_policy must be one of 'fcfs', .* got 'lifo'"):
        make_policy("lifo")


@examples(80)
@given(
    prompts=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 20)), min_size=1, max_size=12),
    block_size=st.sampled_from([1, 4, 16]),
    budget=st.integers(1, 40),
    max_num_seqs=st.integers(1, 6),
    extra=st.integers(0, 20),
)
def test_any_workload_ends_and_leaves_nothing(prompts, block_size, budget, max_num_seqs, extra):
    num_blocks = -(-50 // block_size) + 1 + extra
    scheduler = make_scheduler(num_blocks, block_size, budget, max_num_seqs, max_model_len=51)
    requests = [request(str(i), n, max_tokens) for i, (n, max_tokens) in enumerate(prompts)]
    for r in requests:
        scheduler.add_request(r)
    for plan in run(scheduler):
        assert plan.total_num_scheduled_tokens <= budget
        assert len(plan.num_scheduled_tokens) <= max_num_seqs
        assert not set(plan.preempted_req_ids) & plan.num_scheduled_tokens.keys()
    assert scheduler.kv_manager.block_pool.num_free_blocks == num_blocks - 1
    for r, (_, max_tokens) in zip(requests, prompts, strict=True):
        assert r.seqs[0].num_output_tokens == max_tokens
        expected = list(r.prompt_token_ids)
        for token in r.seqs[0].output_token_ids:  # preempted or not, the same tokens
            assert token == (sum(expected) + len(expected)) % 1000 + 5
            expected.append(token)


def test_nobody_overtakes_the_first_in_the_queue():
    scheduler = make_scheduler(num_blocks=5, block_size=4, max_model_len=17)
    scheduler.add_request(request("a", 8, max_tokens=4))
    step(scheduler)
    scheduler.add_request(request("big", 12))
    scheduler.add_request(request("small", 1))
    assert step(scheduler).num_scheduled_tokens == {"a": 1}


def test_a_prompt_is_admitted_only_if_the_whole_of_it_fits():
    scheduler = make_scheduler(num_blocks=7, block_size=4, budget=4, max_model_len=25)
    scheduler.add_request(request("a", 12, max_tokens=2))
    scheduler.add_request(request("b", 16, max_tokens=2))
    for _ in range(3):
        assert list(step(scheduler).num_scheduled_tokens) == ["a"]
    assert [r.request_id for r in scheduler.waiting] == ["b"]


def test_the_last_admitted_gives_way_and_comes_back_first():
    scheduler = make_scheduler(num_blocks=5, block_size=4, max_model_len=16)
    for name in "abc":
        scheduler.add_request(request(name, 4, max_tokens=6))
    step(scheduler)  # a, b, c fill one block each; one is free
    plan = step(scheduler)  # a takes the last; b needs one: c gives way
    assert plan.num_scheduled_tokens == {"a": 1, "b": 1}
    assert plan.preempted_req_ids == ["c"]
    seq = scheduler.sequences["c"]
    assert (seq.status, seq.num_computed_tokens) == (RequestStatus.PREEMPTED, 0)
    assert seq.num_output_tokens == 1, "what it sampled is kept"
    scheduler.add_request(request("d", 1))
    assert [r.request_id for r in scheduler.waiting] == ["c", "d"]
    plans = run(scheduler)
    back = next(plan for plan in plans if "c" in plan.num_scheduled_tokens)
    assert back.num_scheduled_tokens["c"] == 5, "prompt and output are computed again"
    assert not back.scheduled_new_reqs or back.scheduled_new_reqs[0].seq_id == "d"


def test_a_sequence_may_be_its_own_victim():
    scheduler = make_scheduler(num_blocks=4, block_size=4, max_model_len=13)
    scheduler.add_request(request("a", 4, max_tokens=8))
    scheduler.add_request(request("b", 8, max_tokens=4))
    step(scheduler)
    plan = step(scheduler)  # a needs a block and none is free: b gives way
    assert plan.preempted_req_ids == ["b"]
    run(scheduler)


def test_blocks_freed_by_a_finish_serve_the_next_step():
    scheduler = make_scheduler(num_blocks=3, block_size=4, max_model_len=9)
    scheduler.add_request(request("a", 8, max_tokens=1))
    scheduler.add_request(request("b", 8, max_tokens=1))
    assert list(step(scheduler).num_scheduled_tokens) == ["a"]
    assert list(step(scheduler).num_scheduled_tokens) == ["b"]


def test_a_sequence_ends_at_max_model_len():
    scheduler = make_scheduler(max_model_len=10)
    scheduler.add_request(request("a", 7, max_tokens=None))
    seq = scheduler.sequences["a"]
    run(scheduler)
    assert (seq.num_tokens, seq.status.finish_reason) == (10, "length")


@pytest.mark.parametrize("when", ["waiting", "running", "preempted"])
def test_abort_frees_everything(when):
    scheduler = make_scheduler(num_blocks=5, block_size=4, max_model_len=16)
    for name in "abc":
        scheduler.add_request(request(name, 4, max_tokens=6))
    for _ in range({"waiting": 0, "running": 1, "preempted": 2}[when]):
        step(scheduler)
    seq = scheduler.sequences["c"]
    assert seq.status.name.lower() == when
    scheduler.finish_requests(["c"], RequestStatus.FINISHED_ABORTED)
    scheduler.check_integrity()
    assert seq.status.finish_reason == "abort"
    assert "c" not in scheduler.requests
    scheduler.finish_requests(["c"], RequestStatus.FINISHED_ABORTED)  # again: ignored
    run(scheduler)
    assert scheduler.kv_manager.block_pool.num_free_blocks == 4


def test_abort_between_plan_and_update_is_harmless():
    scheduler = make_scheduler()
    scheduler.add_request(request("a", 4))
    plan = scheduler.schedule()
    scheduler.finish_requests(["a"], RequestStatus.FINISHED_ABORTED)
    assert scheduler.update_from_output(plan, runner_output({"a": 7})) == []
    scheduler.check_integrity()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (request("a", 3), "request_id 'a' is in use"),
        (request("x", 0), "prompt is empty"),
        (request("x", 20), "has 20 tokens, but max_model_len is 20"),
        (
            request("x", 10, max_tokens=9),
            "grow to 1 x 19 tokens, which takes 5 blocks of 4, but the whole KV cache holds 4",
        ),
    ],
)
def test_a_request_that_could_never_run_is_refused(bad, message):
    scheduler = make_scheduler(num_blocks=5, block_size=4, max_model_len=20)
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
    scheduler = make_scheduler()
    r = Request("a", [1, 2, 3], SamplingParams(**params), eos_token_ids=frozenset({99}))
    scheduler.add_request(r)
    scheduler.update_from_output(scheduler.schedule(), runner_output({"a": token}))
    finished = (
        (r.seqs[0].status.finish_reason, r.seqs[0].stop_reason)
        if r.seqs[0].status.is_finished
        else None
    )
    assert finished == reason


def test_each_status_that_ends_a_sequence_has_a_reason():
    ends = [status for status in RequestStatus if status.is_finished]
    assert list(FINISH_REASONS) == ends
    assert [status.finish_reason for status in ends] == list(FINISH_REASONS.values())
    assert RequestStatus(4) is RequestStatus.FINISHED_STOPPED
    assert not any(s.finish_reason for s in RequestStatus if not s.is_finished)


def test_after_a_reset_the_ids_of_those_that_are_left_are_in_use():
    scheduler = make_scheduler()
    scheduler.add_request(request("a", 3, n=2))
    scheduler.add_request(request("b", 3))
    scheduler.finish_requests(["b"], RequestStatus.FINISHED_ABORTED)
    scheduler.schedule()
    scheduler.reset()
    for taken in ("a", "a/1"):
        with pytest.raises(ValueError, match="is in use"):
            scheduler.check_request(request(taken, 3))
    scheduler.check_request(request("b", 3))
