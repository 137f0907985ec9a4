"""Transfers as the scheduler sees them: no model, no files, and no block that is lost."""

from concurrent.futures import Future

import pytest
from helpers import examples
from hypothesis import given
from hypothesis import strategies as st

from minivllm.config import SchedulerConfig
from minivllm.kv.manager import KVCacheManager
from minivllm.kv_transfer.base import KVConnectorOutput, KVOutputAggregator
from minivllm.lab.sim.loop import fake_tokens
from minivllm.lab.sim.make import make_request
from minivllm.lab.sim.replay import replay
from minivllm.lab.sim.replay_kv import ScriptedConnector
from minivllm.lab.sim.stub_runner import StubRunner
from minivllm.request import RequestStatus
from minivllm.scheduling.batch_queue import BatchQueue
from minivllm.scheduling.livelock import check_progress
from minivllm.scheduling.remote_kvs import connect
from minivllm.scheduling.scheduler import Scheduler
from minivllm.trace import Trace


class FailingConnector(ScriptedConnector):
    """A connector that does not bring what it has promised for some requests."""

    def __init__(self, failing=(), beside=True):
        super().__init__()
        self.failing = set(failing)
        self.beside = beside

    def get_num_new_matched_tokens(self, seq, num_computed_tokens):
        count, _ = super().get_num_new_matched_tokens(seq, num_computed_tokens)
        return count, self.beside

    def update_state_after_alloc(self, seq, block_ids, num_external_tokens):
        super().update_state_after_alloc(seq, block_ids, num_external_tokens)
        if not self.beside:
            self._receiving.clear()

    def transfers_ended(self):
        ended = super().transfers_ended()
        failed = ended.finished_recving & self.failing
        return KVConnectorOutput(
            ended.finished_sending,
            ended.finished_recving - failed,
            dict.fromkeys(failed, "it was cut off"),
        )


class Engine:
    """A scheduler with a connector, and a runner without a model."""

    def __init__(self, connector=None, recomputes=True, num_blocks=40, caching=True, **limits):
        self.trace = Trace(num_blocks, 4, 64)
        manager = KVCacheManager(num_blocks, 4, caching, num_host_blocks=20, trace=self.trace)
        config = SchedulerConfig(
            **{"max_num_seqs": 6, "max_model_len": 64, "max_num_batched_tokens": 64} | limits
        )
        self.scheduler = Scheduler(config, manager, self.trace)
        self.connector = connector or ScriptedConnector()
        connect(self.scheduler, self.connector, recomputes)
        self.remote = self.scheduler.remote_kvs
        self.queue = BatchQueue(self.scheduler, 1)
        self.runner = StubRunner()
        self.plans = []

    def step(self):
        """One call; returns the sequences that have an output."""
        self.connector.call += 1
        found = self.queue.advance(self._execute)
        updated = [] if found is None else self.scheduler.update_from_output(*found)
        self.scheduler.check_integrity()
        state = self.trace.state_at(self.trace.step)
        assert state.waiting == [request.request_id for request in self.scheduler.waiting]
        assert state.num_free_blocks == self.scheduler.kv_manager.block_pool.num_free_blocks
        return updated

    def _execute(self, plan):
        check_progress(self.scheduler, plan, more_to_come=True)
        self.plans.append(dict(plan.num_scheduled_tokens))
        output = self.runner.execute(plan)
        output.kv_connector_output = self.connector.transfers_ended()
        future = Future()
        future.set_result(output)
        return future

    def run(self, limit=400):
        while self.queue.has_work:
            self.step()
            limit -= 1
            assert limit, "it goes on for ever"
        pool = self.scheduler.kv_manager.block_pool
        assert pool.num_free_blocks == pool.num_usable_blocks

    def tokens_of(self, name):
        """Tokens of a request that all steps have computed."""
        return sum(plan.get(name, 0) for plan in self.plans)


def fetching(name, num_tokens=12, max_tokens=3, delay=3, first=5, **kwargs):
    params = {"do_remote_prefill": True, "delay": delay}
    prompt = list(range(first, first + num_tokens))
    return make_request(name, prompt, max_tokens, kv_transfer_params=params, **kwargs)


def sending(name, num_tokens=12, delay=3, **kwargs):
    params = {"do_remote_decode": True, "delay": delay}
    return make_request(name, [7] * num_tokens, 1, kv_transfer_params=params, **kwargs)


def is_right(seq):
    """True if each token is what the made-up model says behind those before it."""
    known = seq.token_ids[: seq.num_prompt_tokens]
    return seq.output_token_ids == fake_tokens(known, seq.num_output_tokens)


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
    engine.connector._asked.clear()
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
