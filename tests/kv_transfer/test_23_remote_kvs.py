"""Transfers as the scheduler sees them: no model, no files, and no block that is lost."""

import pytest
from helpers import examples
from hypothesis import given
from hypothesis import strategies as st
from remote_kv_engine import Engine, FailingConnector, fetching, is_right, sending

from minivllm.kv_transfer.base import KVConnectorOutput, KVOutputAggregator
from minivllm.lab.sim.make import make_request
from minivllm.lab.sim.replay import replay
from minivllm.request import RequestStatus


def test_a_request_waits_with_its_blocks_and_computes_one_token_of_its_prompt():
    engine = Engine()
    request = fetching("a")
    engine.scheduler.add_request(request)
    engine.step()
    (seq,) = request.seqs
    assert seq.status == RequestStatus.WAITING_FOR_REMOTE_KVS
    assert not seq.status.is_finished
    assert len(engine.scheduler.kv_manager.get_block_ids("a")) == 3
    engine.scheduler.add_request(make_request("b", [1] * 6, 4))  # goes on beside it
    engine.run()
    assert engine.tokens_of("a") == 1 + 2
    assert is_right(seq)
    assert [bool(plan.get("b")) for plan in engine.plans[:4]] == [False, True, True, True]


def test_blocks_stay_until_they_are_sent_and_the_id_with_them():
    engine = Engine()
    engine.scheduler.add_request(sending("a"))
    engine.step()
    assert not engine.scheduler.requests
    assert engine.scheduler.has_unfinished_requests()
    assert len(engine.scheduler.kv_manager.get_block_ids("a")) == 3
    with pytest.raises(ValueError, match="'a' is in use"):
        engine.scheduler.add_request(make_request("a", [1], 1))
    engine.run()
    engine.scheduler.add_request(make_request("a", [1], 1))
    engine.run()


@pytest.mark.parametrize("recomputes", [True, False])
def test_a_transfer_that_fails_costs_its_own_request_alone(recomputes):
    engine = Engine(FailingConnector({"a"}), recomputes)
    failing, other = fetching("a"), fetching("b", first=40)
    engine.scheduler.add_request(failing)
    engine.scheduler.add_request(other)
    ended = []
    while engine.queue.has_work:
        ended += [seq.seq_id for seq in engine.step() if seq.status == RequestStatus.FINISHED_ERROR]
    (seq,) = failing.seqs
    assert ended == ([] if recomputes else ["a"])
    assert engine.tokens_of("a") == (12 + 2 if recomputes else 0)
    assert is_right(seq)
    assert is_right(other.seqs[0])
    assert engine.tokens_of("b") == 1 + 2


def test_what_is_loaded_inside_a_step_counts_as_computed_in_it():
    engine = Engine(FailingConnector(beside=False))
    engine.scheduler.add_request(fetching("a"))
    engine.step()
    assert engine.plans == [{"a": 1}]
    engine.run()


def test_an_aborted_request_keeps_its_blocks_until_its_transfer_has_ended():
    engine = Engine()
    engine.scheduler.add_request(fetching("a", delay=4))
    engine.step()
    engine.scheduler.finish_requests(["a"], RequestStatus.FINISHED_ABORTED)
    engine.scheduler.check_integrity()
    assert list(engine.remote.sending) == ["a"]
    assert not engine.scheduler.requests
    engine.run()


def test_after_a_failed_step_it_is_fetched_again():
    engine = Engine()
    request = fetching("a", delay=9)
    engine.scheduler.add_request(request)
    engine.step()
    engine.scheduler.reset()
    engine.scheduler.check_integrity()
    engine.run()
    assert is_right(request.seqs[0])


def test_two_that_wait_never_wait_for_each_other():
    """A transfer starts only beside what prompts under way still need."""
    engine = Engine(num_blocks=9, max_num_batched_tokens=4)
    long = make_request("long", [3] * 20, 2)
    engine.scheduler.add_request(long)
    engine.step()
    engine.scheduler.add_request(fetching("a", num_tokens=16))
    engine.step()
    assert not engine.remote.waiting  # 4 blocks, but 3 of the 7 free ones are spoken for
    engine.run()
    assert is_right(long.seqs[0])


def test_swapped_samples_and_requests_that_hold_blocks_never_wait_for_each_other():
    engine = Engine(num_blocks=14, caching=False, max_num_batched_tokens=5)
    samples = make_request("samples", [9] * 14, 9, n=2)  # preempted, they are swapped
    engine.scheduler.add_request(samples)
    others = [fetching("a", 18, 3, delay=6), fetching("b", 15, 5, delay=3)]
    for other in others:
        engine.step()
        engine.scheduler.add_request(other)
    engine.run()
    assert all(is_right(seq) for request in (samples, *others) for seq in request.seqs)


@examples(60)
@given(data=st.data())
def test_any_mixture_ends_with_the_right_tokens_and_all_blocks_free(data):
    draw = data.draw
    failing = draw(st.sets(st.integers(0, 7), max_size=3))
    connector = FailingConnector({str(i) for i in failing}, beside=draw(st.booleans()))
    engine = Engine(
        connector,
        recomputes=draw(st.booleans()),
        num_blocks=draw(st.sampled_from([14, 20, 60])),
        caching=draw(st.booleans()),
        max_num_batched_tokens=draw(st.sampled_from([5, 64])),
        preemption_mode=draw(st.sampled_from([None, "swap"])),
        policy=draw(st.sampled_from(["fcfs", "priority"])),
    )
    requests = []
    for index in range(draw(st.integers(1, 8))):
        make = draw(st.sampled_from([fetching, sending, make_request]))
        num_tokens = draw(st.integers(1, 20))
        kwargs = {}
        if engine.scheduler.policy.uses_priority:
            kwargs["priority"] = draw(st.integers(0, 2))
        if make is make_request:
            kwargs |= {"n": draw(st.integers(1, 2))}
            prompt = [9] * min(num_tokens, 14)  # two samples must fit into the smallest pool
            requests.append(make(str(index), prompt, draw(st.integers(1, 9)), **kwargs))
            continue
        kwargs["delay"] = draw(st.integers(1, 6))
        if make is fetching:
            kwargs |= {
                "max_tokens": draw(st.integers(1, 9)),
                "first": draw(st.sampled_from([3, 9])),
            }
        requests.append(make(str(index), num_tokens, **kwargs))
    aborts = draw(st.dictionaries(st.integers(0, 12), st.integers(0, 7), max_size=2))
    to_come = list(requests)
    number = 0
    while to_come or engine.queue.has_work:
        for request in [to_come.pop(0) for _ in range(min(2, len(to_come)))]:
            engine.scheduler.add_request(request)
        if number in aborts:
            name = str(aborts[number])
            engine.scheduler.finish_requests([name], RequestStatus.FINISHED_ABORTED)
        engine.step()
        number += 1
        assert number < 600
    engine.run()
    assert all(is_right(seq) for request in requests for seq in request.seqs)


def test_a_transfer_of_several_workers_has_ended_when_all_say_so():
    counts = KVOutputAggregator(2)
    first = counts.aggregate([KVConnectorOutput({"s"}, {"a", "b"}), KVConnectorOutput()])
    assert not first
    second = counts.aggregate([None, KVConnectorOutput({"s"}, {"a"}, {"b": "its file is short"})])
    assert second == KVConnectorOutput({"s"}, {"a"}, {"b": "its file is short"})
    assert not counts.aggregate([KVConnectorOutput(), KVConnectorOutput()])


CONFIG = {
    "block_size": 4, "num_gpu_blocks": 20, "max_num_batched_tokens": 16, "max_num_seqs": 4,
    "enable_prefix_caching": True, "long_prefill_token_threshold": 0, "max_model_len": 64,
    "enable_chunked_prefill": True, "policy": "fcfs", "mode": "kv", "kv_role": "kv_consumer",
}  # fmt: skip
ENTRY = {"id": "a", "arrival_step": 0, "prompt_token_ids": [1, 2], "max_tokens": 1}


@pytest.mark.parametrize(
    ("config", "params", "message"),
    [
        ({"kv_role": "both"}, None, r"config\['kv_role'\]"),
        ({"mode": "async"}, {"do_remote_decode": True, "delay": 1}, "absent unless"),
        ({}, {"do_remote_decode": False, "delay": 1}, "one of"),
        ({}, {"do_remote_decode": True}, r"\['delay'\]"),
        ({}, {"do_remote_decode": True, "delay": 0}, r"\['delay'\]"),
        ({}, [1], "an object"),
    ],
)
def test_a_workload_that_is_wrong_is_named(config, params, message):
    entry = ENTRY if params is None else ENTRY | {"kv_transfer_params": params}
    with pytest.raises(ValueError, match=message):
        replay({"config": CONFIG | config, "requests": [entry]})
