"""Several plans in flight: decisions are vLLM's, and tokens do not depend on how many there are."""

import json
import random
from collections import Counter
from concurrent.futures import Future

import pytest
from helpers import assert_decides_as, assert_same_free_queue, make_scheduler, request

from minivllm.kv.manager import KVCacheManager
from minivllm.lab.sim import loop, make
from minivllm.lab.sim.loop import fake_execute
from minivllm.lab.sim.recordings import PIPELINE_GOLDEN, load_recording
from minivllm.lab.sim.replay import replay
from minivllm.lab.viz.model.timeline_model import read_history
from minivllm.request import RequestStatus
from minivllm.scheduling.batch_queue import BatchQueue
from minivllm.trace import Trace
from minivllm.trace.records import Scheduled, StepEnded
from minivllm.viz import (
    block_grid,
    block_table,
    filmstrip,
    save_chrome_trace,
    save_html,
    stepper,
    timeline,
)


@pytest.mark.parametrize("path", PIPELINE_GOLDEN, ids=lambda p: p.name.split(".")[0])
def test_decides_what_vllm_decides(path):
    """Every call of vLLM's ``step_with_batch_queue``: plans, tables, queues, what is discarded."""
    assert_decides_as(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"mode": "other"}, r"config\['mode'\] must be one of"), ({"pp_size": 0}, "from 1 to")],
)
def test_a_recording_of_another_mode_is_refused(change, message):
    golden = load_recording(PIPELINE_GOLDEN[0])
    with pytest.raises(ValueError, match=message):
        replay({"config": golden["config"] | change, "requests": golden["requests"]})


class Runner:
    """Model runner that computes when it is asked for a result; tokens are known in order."""

    def __init__(self, scheduler):
        self.scheduler, self.plans = scheduler, []

    def __call__(self, plan):
        self.plans.append(plan)
        future = Future()
        future.set_result(fake_execute(self.scheduler, plan))
        return future


class Queue(BatchQueue):
    """A queue with a runner of its own."""

    def __init__(self, scheduler, runner, size):
        super().__init__(scheduler, size)
        self.runner = runner

    def advance(self):
        return super().advance(self.runner)


def update(queue):
    """A call of the engine; returns the plan that it has ended, or None."""
    oldest = queue.advance()
    if oldest is not None:
        queue.scheduler.update_from_output(*oldest)
    queue.scheduler.check_integrity()
    return None if oldest is None else oldest[0]


def test_the_queue_is_filled_before_it_is_read_and_no_request_is_in_two_plans():
    scheduler = make_scheduler(budget=8)
    queue = Queue(scheduler, runner := Runner(scheduler), 2)
    for name in "abcd":
        scheduler.add_request(request(name, 4, max_tokens=2))
    assert update(queue) is None
    assert len(queue) == 1
    ended = [update(queue) for _ in range(6)]
    plans = [list(plan.num_scheduled_tokens) for plan in runner.plans]
    assert plans == [["a", "b"], ["c", "d"], ["a", "b"], ["c", "d"], [], []]
    assert [runner.plans.index(plan) for plan in ended] == [0, 1, 2, 3, 4, 5]
    assert not queue.has_work
    assert runner.plans[-1].finished_req_ids == ["c", "d"]  # the runner is told


def test_a_token_of_an_aborted_request_is_discarded():
    scheduler = make_scheduler()
    queue = Queue(scheduler, Runner(scheduler), 2)
    scheduler.add_request(request("a", 4))
    assert update(queue) is None
    scheduler.finish_requests(["a"], RequestStatus.FINISHED_ABORTED)
    assert scheduler.kv_manager.usage == 0
    assert not scheduler.has_unfinished_requests()
    assert queue.has_work  # its plan is in flight
    while queue.has_work:
        update(queue)
    assert not scheduler.sequences


@pytest.mark.parametrize("stops", [False, True])
def test_a_preempted_request_gets_its_stale_token_and_waits_for_it(stops):
    """Until it has come others may pass; if it ends the request, that leaves the queue."""
    scheduler = make_scheduler(num_blocks=6, block_size=4, max_model_len=16)
    queue = Queue(scheduler, runner := Runner(scheduler), 3)
    token = loop.fake_tokens([*range(7)], 1)[0]
    requests = {name: request(name, length) for name, length in (("a", 8), ("b", 3), ("d", 3))}
    requests["c"] = request("c", 7, max_tokens=8, stop_token_ids=[token] if stops else [])
    for name in "abc":  # one after the other, in all five blocks
        scheduler.add_request(requests[name])
        update(queue)
    (young,) = requests["c"].seqs
    update(queue)
    assert runner.plans[3].num_scheduled_tokens == {"a": 1}  # it needs a third block
    assert runner.plans[3].preempted_req_ids == ["c"]
    assert young.output_token_ids == []  # its token is on its way
    scheduler.add_request(requests["d"])
    update(queue)
    assert runner.plans[4].num_scheduled_tokens == {"b": 1, "d": 3}  # "c" is set aside
    assert young.output_token_ids == [token]
    assert young.status.is_finished is stops
    assert [r.request_id for r in scheduler.waiting] == ([] if stops else ["c"])
    while queue.has_work:
        update(queue)
    assert young.num_output_tokens == (1 if stops else 8)
    assert scheduler.kv_manager.usage == 0


def workload(rng):
    """Requests of every kind that is in plans of its own, and who is aborted at which call."""
    requests = []
    for i in range(12):
        n, length = rng.choice([(1, 20), (1, 20), (3, 6)])
        prompt = [rng.randrange(9) for _ in range(rng.randrange(1, length))]
        most, stops = rng.randrange(1, 9), rng.sample(range(5, 1005), 60)
        requests.append(request(str(i), prompt, max_tokens=most, n=n, stop_token_ids=stops))
    return requests, {str(i): rng.randrange(30) for i in rng.sample(range(12), 2)}


def tokens(seed, size, mode, trace=None):
    """Run a workload with this many plans in flight; tokens of the requests that end by themselves.

    With a trace, its state is compared with the scheduler's after every call.
    """
    rng = random.Random(seed)
    requests, aborts = workload(rng)
    manager = KVCacheManager(14, 4, num_host_blocks=20, trace=trace)
    scheduler = make.make_scheduler(
        manager, trace, max_num_batched_tokens=rng.choice([12, 24]), max_num_seqs=6,
        max_model_len=40, preemption_mode=mode, policy=rng.choice(["fcfs", "priority"]),
    )  # fmt: skip
    queue, call, to_come = Queue(scheduler, Runner(scheduler), size), 0, list(requests)
    while to_come or queue.has_work:
        for one in [to_come.pop(0) for _ in range(min(2, len(to_come)))]:
            scheduler.add_request(one)
        scheduler.finish_requests([i for i, at in aborts.items() if at == call],
                                  RequestStatus.FINISHED_ABORTED)  # fmt: skip
        update(queue)
        call += 1
        if trace is not None:
            state = trace.state_at(trace.step)
            assert_same_free_queue(state, manager)
            assert [s.seq_id for s in scheduler.running] == state.running
            for seq in scheduler.running:
                told, num_in_flight = state.sequences[seq.seq_id], seq.num_in_flight_tokens
                assert told.num_computed_tokens == seq.num_computed_tokens - num_in_flight
                assert told.num_scheduled_tokens == num_in_flight
                assert told.token_ids == seq.token_ids
    assert manager.usage == 0
    return scheduler.num_preemptions, {
        seq.seq_id: seq.output_token_ids
        for one in requests
        for seq in one.seqs
        if one.request_id not in aborts
    }


@pytest.mark.parametrize("mode", ["recompute", "swap", None])
def test_tokens_do_not_depend_on_the_number_of_plans_in_flight(mode):
    num_preemptions = 0
    for seed in range(40):
        _, want = tokens(seed, 1, mode)
        for size in (2, 3, 5):
            more, got = tokens(seed, size, mode)
            num_preemptions += more
            assert got == want, (seed, size)
    assert num_preemptions > 50


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_a_trace_of_plans_in_flight_is_true(mode):
    for seed in range(12):
        trace = Trace(14, 4, 24)
        tokens(seed, 3, mode, trace)
        behind = [r.step - r.plan for r in trace.of(StepEnded) if r.plan not in (None, r.step)]
        assert max(behind) == 2


def test_figures_of_plans_in_flight_count_each_plan_once(tmp_path):
    trace = Trace(14, 4, 24)
    tokens(1, 3, "recompute", trace)
    planned = Counter()
    for record in trace.of(Scheduled):
        planned[record.step] += record.num_tokens
    drawn = {step: info.num_tokens for step, info in read_history(trace).steps.items()}
    assert +Counter(drawn) == planned
    for draw in (timeline, block_grid, block_table, stepper, filmstrip):
        assert draw(trace)
    save_html(trace, tmp_path / "page.html")
    save_chrome_trace(trace, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    steps = [e["args"]["tokens"] for e in events if e["name"].startswith("step ")]
    assert steps == [planned[step] for step in range(trace.num_steps)]
