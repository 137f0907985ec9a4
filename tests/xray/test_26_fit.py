"""Fit and what-if on runs whose step times are made by a known rule, under four kinds of load."""

import random
from functools import cache

import pytest
from check_what_if import BASE, CHANGES, KINDS, runs_of, workload

from minivllm.kv.manager import KVCacheManager
from minivllm.lab.sim.loop import Arrivals, fake_execute, run_step
from minivllm.lab.sim.make import make_scheduler
from minivllm.request import Request
from minivllm.sampling_params import SamplingParams
from minivllm.trace import Trace
from minivllm.trace.records import Finished, StepEnded
from minivllm.xray import what_if
from minivllm.xray.arrivals import times_to_schedule
from minivllm.xray.fit import fit_cost
from minivllm.xray.format import XRay, header_line, row_of, step_line
from minivllm.xray.scenarios import parse_changes

PAUSE, DELAY = 3e-4, 1.5e-3  # seconds between two steps, and from the server to the engine
COSTS = {
    "line": lambda tokens, seqs, keys: 1e-3 + 25e-6 * tokens + 20e-6 * seqs + 1e-7 * keys,
    "concave": lambda tokens, seqs, keys: 8e-4 + 1.5e-4 * tokens**0.75 + 30e-6 * seqs,
    "steeper beyond 64": lambda tokens, *_: 1.2e-3 + 20e-6 * tokens + 40e-6 * max(0, tokens - 64),
}


def run_of(asked, cost=COSTS["line"], interruptions=(), **arguments):
    """A run of our scheduler under a clock, with vLLM's arguments.

    Args:
        asked: seconds of arrival, prompt and length of the answer of each request.
        cost: seconds of a step.
        interruptions: steps that take a second longer.
    """
    arguments = BASE | arguments
    num_blocks, clock, rng = arguments.pop("num_gpu_blocks_override"), [0.0], random.Random(0)
    limits = {"max_model_len": 1024, **arguments}
    budget = limits["max_num_batched_tokens"]
    trace = Trace(num_blocks, 32, budget, clock=lambda: clock[0])
    scheduler = make_scheduler(KVCacheManager(num_blocks, 32, False, trace=trace), trace, **limits)
    arrivals, requests = Arrivals(), {}
    for i, (after, prompt, n) in enumerate(asked):
        params = SamplingParams(max_tokens=n, ignore_eos=True)
        arrivals.push(Request(f"{i}", prompt, params, arrival_time=after + DELAY), i)
        requests[f"{i}"] = {"arrival_time": after, "max_tokens": n}

    def execute(scheduler, plan):
        scheduled, computed = plan.num_scheduled_tokens, plan.num_computed_tokens
        keys = sum(computed[name] + n for name, n in scheduled.items())
        seconds = cost(sum(scheduled.values()), len(scheduled), keys)
        clock[0] += seconds * rng.lognormvariate(0, 0.1) + (trace.step in interruptions)
        return fake_execute(scheduler, plan)

    while arrivals or scheduler.has_unfinished_requests():
        if not scheduler.requests:
            clock[0] = max(clock[0], arrivals.next_time)
        for request in arrivals.pop_until(clock[0]):
            scheduler.add_request(request)
        run_step(scheduler, execute, more_to_come=bool(arrivals))
        clock[0] += PAUSE
    header = {"vllm_version": "ours", "model": "none", "num_blocks": num_blocks, "block_size": 32,
              "settings": limits, "text": True}  # fmt: skip
    return XRay(header, trace, requests)


@cache
def loaded(kind, cost, change=""):
    return run_of(workload(kind), COSTS[cost], **CHANGES[change])


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_settings_come_out_as_measured_under_each_load(kind, cost):
    found = what_if(loaded(kind, cost))
    assert found.ratios == pytest.approx({"TTFT": 1, "ITL": 1, "tokens/s": 1}, abs=0.05)
    assert "WARNING" not in str(found)


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("change", [change for change in CHANGES if change])
def test_other_settings_are_told_within_a_fifth(change, cost):
    told = what_if(loaded("saturated", cost), *parse_changes([change])).cases[-1]
    real = what_if(loaded("saturated", cost, change)).cases[0]
    assert told.mean_ttft == pytest.approx(real.mean_ttft, rel=0.2)
    assert told.mean_itl == pytest.approx(real.mean_itl, rel=0.2)
    assert told.tokens_per_second == pytest.approx(real.tokens_per_second, rel=0.2)


@pytest.mark.parametrize("gap", [1, 10])
@pytest.mark.parametrize("ends", ["answered", "aborted"])
def test_an_engine_without_requests_does_not_pause(gap, ends):
    xray = run_of([(gap * i, [7] * 40, 20) for i in range(8)])
    if ends == "aborted":  # behind the last step of each, as when a client hangs up
        trace, held = xray.trace, []
        for place, record in enumerate(trace.records):
            if isinstance(record, Finished) and isinstance(trace.records[place + 1], StepEnded):
                held.append(place)
        for place in held:
            finished, ended = trace.records[place : place + 2]
            aborted = Finished(finished.step, finished.seq_id, "abort")
            trace.records[place : place + 2] = [ended, aborted]
    cost = fit_cost(xray.trace)
    assert cost.pause_seconds(1) == pytest.approx(PAUSE, rel=0.01)
    assert cost.left_out == 0
    found = what_if(xray)
    assert found.ratios["ITL"] == pytest.approx(1, abs=0.05)


def test_what_the_fit_leaves_out_is_counted_told_and_simulated():
    slow = range(5, 270, 12)  # a twelfth of the steps takes most of the time
    xray = run_of(workload("saturated"), interruptions=slow)
    found = what_if(xray)
    num_slow = sum(step < xray.trace.num_steps for step in slow)
    assert len(found.cost.interruptions) == num_slow > 8
    assert all(0.9 < some.seconds < 1.1 for some in found.cost.interruptions)
    assert 0.9 < found.cost.left_out < 1
    told = f"left out of the fit: {num_slow} steps or pauses of more than 5 times"
    assert told in str(found)
    assert f"{found.cost.left_out:.1%} of the time" in str(found)
    assert found.ratios == pytest.approx({"TTFT": 1, "ITL": 1, "tokens/s": 1}, abs=0.1)


def test_sums_that_do_not_come_out_are_a_warning():
    slow_later = run_of(workload("mixed"), lambda tokens, *_: 1e-3 if tokens > 40 else 9e-3)
    found = what_if(slow_later)
    off = [name for name, ratio in found.ratios.items() if abs(ratio - 1) > 0.15]
    assert off
    sentence = f"WARNING: {' and '.join(off)} of the same settings"
    assert sentence in str(found)
    assert "differ by more than 15%" in str(found)


def test_a_case_beyond_what_was_seen_is_a_guess():
    together = run_of([(0, [7] * 60, 40)] * 9)
    few, more, within = what_if(
        together, {"max_num_seqs": 8}, {"max_num_batched_tokens": 64}, {"num_blocks": "x2"}
    ).cases[2:]
    assert "the run has no step with fewer than 9 sequences" in few.guess
    assert "fewer than 9 sequences" in more.guess  # prompts in chunks
    assert within.guess == ""
    narrow = what_if(run_of([(0, [7] * 60, 40)] * 32, max_num_seqs=4), {"max_num_seqs": 32})
    assert "the run has no step with more than 4 sequences" in narrow.cases[-1].guess
    assert f"WARNING: max_num_seqs=32 is a guess: {narrow.cases[-1].guess}." in str(narrow)


def test_requests_reach_the_scheduler_after_the_servers_delay():
    xray = run_of([(0, [7] * 900, 30), (0.004, [7] * 9, 9), (1, [7] * 9, 9), (2, [7] * 9, 9)])
    times = times_to_schedule(xray)
    assert [times[name] for name in "23"] == pytest.approx([1 + DELAY, 2 + DELAY])
    assert times["1"] == pytest.approx(0.004 + DELAY, abs=1e-6)  # came during a step
    assert times["0"] == pytest.approx(DELAY)


def test_a_file_of_several_loads_is_read_as_a_run_of_each(tmp_path):
    lines, step = [], 0
    for kind in ("idle", "mixed"):
        run = run_of(workload(kind)[:5])
        for number in range(-1, run.trace.num_steps):
            some = [r for r in run.trace.records if r.step == number]
            rows = [row_of(r) for r in some]
            rows = [[kind + "-" + v if v in run.requests else v for v in row] for row in rows]
            asked = {r.request_id for r in some if type(r).__name__ == "RequestAdded"}
            new = {f"{kind}-{name}": run.requests[name] for name in asked}
            lines.append(step_line(step + number, rows, new))
        step += run.trace.num_steps
    path = tmp_path / "run.jsonl"
    path.write_text(header_line(**run.header) + "".join(lines))
    runs = runs_of(path)
    assert list(runs) == ["idle", "mixed"]
    for kind, found in runs.items():
        assert found.trace.first_step == 0
        assert found.requests.keys() == {f"{kind}-{i}" for i in range(5)}
        assert what_if(found).ratios == pytest.approx({"TTFT": 1, "ITL": 1, "tokens/s": 1}, abs=0.1)
