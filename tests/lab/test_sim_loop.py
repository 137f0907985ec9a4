"""The model-free loop: who arrives when, what a step gives back, and when it gives up."""

import pytest

from minivllm.course.grading.run import Fault, run
from minivllm.course.grading.scenarios import scenarios
from minivllm.kv.manager import KVCacheManager
from minivllm.lab.sim.clock import Clock
from minivllm.lab.sim.loop import Arrivals, TooManySteps, fake_execute, run_step, run_steps
from minivllm.lab.sim.make import make_scheduler
from minivllm.request import Request
from minivllm.sampling_params import SamplingParams


def request(name, arrival=0.0, prompt=3, max_tokens=2):
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return Request(name, [7] * prompt, params, arrival_time=arrival)


def scheduler(**options):
    limits = {"max_num_batched_tokens": 16, "max_num_seqs": 4, "max_model_len": 32, **options}
    return make_scheduler(KVCacheManager(16, 4), **limits)


def test_arrivals_come_by_time_and_then_by_rank():
    arrivals = Arrivals([request("late", 2.0), request("a", 1.0), request("b", 1.0)])
    arrivals.push(request("first of all", 1.0), -1)
    assert (len(arrivals), arrivals.next_time) == (4, 1.0)
    assert [r.request_id for r in arrivals.pop_until(0.5)] == []
    assert [r.request_id for r in arrivals.pop_until(1.5)] == ["first of all", "a", "b"]
    assert [r.request_id for r in arrivals.pop_until(9.0)] == ["late"]
    assert not arrivals


def test_steps_are_the_clock_unless_there_is_another():
    """By steps, b comes in step 3, after an empty one; by a clock, when that says so."""
    requests = [request("a"), request("b", 3)]
    batches = [list(s.sampled) for s in run_steps(scheduler(), requests)]
    assert batches == [["a"], ["a"], [], ["b"], ["b"]]
    requests = [request("a"), request("b", 3)]
    seconds, clock = iter((3.5, 0.5, 1.0)), Clock()

    def execute(scheduler, plan):
        clock.now += next(seconds)
        return fake_execute(scheduler, plan)

    steps = list(run_steps(scheduler(), requests, execute, clock))
    assert [list(s.sampled) for s in steps] == [["a"], ["a", "b"], ["b"]]
    assert [[seq.seq_id for seq in s.updated] for s in steps] == [["a"], ["a", "b"], ["b"]]


def test_an_idle_engine_waits_for_the_next_request():
    """The clock is set to its arrival: there is no step in which nothing is computed."""
    clock, begins = Clock(), []

    def execute(scheduler, plan):
        begins.append((clock.now, *plan.num_scheduled_tokens))
        clock.now += 1.0
        return fake_execute(scheduler, plan)

    list(run_steps(scheduler(), [request("a"), request("b", 30.5)], execute, clock))
    assert begins == [(0.0, "a"), (1.0, "a"), (30.5, "b"), (31.5, "b")]


def test_a_step_takes_the_place_of_the_model():
    """``execute`` is called in the middle of a step, and its tokens are appended."""
    core, seen = scheduler(), []

    def execute(scheduler, scheduler_output):
        seen.append((scheduler is core, dict(scheduler_output.num_scheduled_tokens)))
        return fake_execute(scheduler, scheduler_output)

    core.add_request(request("a"))
    step = run_step(core, execute)
    assert seen == [(True, {"a": 3})]
    (seq,) = step.updated
    assert seq.output_token_ids == [(3 * 7 + 3) % 1000 + 5]


def test_it_gives_up_after_the_last_step():
    with pytest.raises(TooManySteps, match=r"^after 2 steps some are not done: a\.$"):
        list(run_steps(scheduler(), [request("a", max_tokens=9)], max_steps=2))


def test_a_manager_that_admits_nobody_fails_its_lab():
    class Full(KVCacheManager):
        def get_num_blocks_to_allocate(self, seq, hit):
            return 10**6

    with pytest.raises(Fault, match=r"^step 0: nothing runs, and none is ever admitted: A$"):
        list(run(scenarios(0)[0], Full, check_integrity=False))
