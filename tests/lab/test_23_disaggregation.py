"""Notebook 23: lanes by hand, send or compute, engines of each kind; mistakes are noticed."""

from collections import Counter

import pytest

from minivllm.course.asking.answers import NotYet
from minivllm.course.ch23.ahead import run_ahead, wrong_answers
from minivllm.course.ch23.goodput import goodput_by_limit, serve_pools, share_in_time
from minivllm.course.ch23.recorded_calls import compare_calls, compare_drawn
from minivllm.course.ch23.steady_connector import NUM_STEPS, SteadyConnector
from minivllm.course.ch23.two_engines import Asked, make_engine, serve
from minivllm.course.grading.run import Fault
from minivllm.exercises import ch23, labs
from minivllm.kv.manager import KVCacheManager
from minivllm.lab.sim.disaggregation import simulate_pools
from minivllm.lab.sim.make import make_request
from minivllm.lab.sim.pool_costs import TABLES
from minivllm.lab.sim.workloads import SimRequest
from minivllm.lab.viz.model.overlap_model import DEVICE_UNITS, read_overlap
from minivllm.request import Request
from minivllm.scheduling.async_scheduler import AsyncScheduler
from minivllm.trace.records import Scheduled, TokensWasted, TransferEnded, TransferStarted

SEEDS = range(5)
OWN = TABLES["distserve"]


# -- exercises: each once more, in a way of its own ------------------------------------------------


@pytest.mark.parametrize("num_plans", [1, 2])
def test_lanes_by_hand_take_as_long_as_those_that_are_drawn(num_plans):
    """A plan takes a unit, the device four, an update and the text one each."""
    trace = run_ahead([make_request("A", 6, 7)], num_blocks=20, num_plans=num_plans)
    drawn = read_overlap(trace, 0, trace.num_steps - 1, "steps")
    finish_ms = ch23.lanes(0).solve()
    last = max(token.known for token in drawn.tokens)  # its text is still to be made
    assert finish_ms(1, DEVICE_UNITS, 2, 7, num_plans == 2) == last + 1


@pytest.mark.parametrize("seed", SEEDS)
def test_a_prompt_is_fetched_sooner_from_the_shortest_on(seed):
    exercise = ch23.fetch(seed)
    shortest = exercise.solve()
    num_found = 0
    for base, per_token, latency, sent, step in exercise.calls:
        found = shortest(base, per_token, latency, sent, step)

        def is_sooner(n, parts=(base, per_token, latency, sent, step)):
            base, per_token, latency, sent, step = parts
            return latency + n * sent + step < base + n * per_token

        if found is None:
            assert not any(map(is_sooner, (1, 10, 10**4, 10**6)))
            continue
        num_found += 1
        assert is_sooner(found)
        assert found == 1 or not is_sooner(found - 1)
    assert 0 < num_found < len(exercise.calls)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_engines_of_each_kind_keep_pace_and_one_less_does_not(seed):
    exercise = ch23.pools(seed)
    given = exercise.given
    prefill, decode = exercise.solve()
    arrivals = [index / given["rate"] for index in range(2000)]
    busy = len(arrivals) * given["prefill_ms"] / 1000 / arrivals[-1]
    assert busy / prefill <= 0.801 < busy / (prefill - 1)
    lasts = given["num_output"] * given["step_ms"] / 1000
    running = Counter(sum(t - lasts < a <= t for a in arrivals) for t in arrivals[1000:1100])
    most = max(running)
    assert (decode - 1) * given["most_running"] < most <= decode * given["most_running"] + 1
    for wrong in ((prefill - 1, decode), (prefill, decode - 1), (prefill + 1, decode)):
        with pytest.raises(NotYet):
            exercise.check(wrong)


# -- the lab: each milestone notices its break -----------------------------------------------------


class Wasteful(AsyncScheduler):
    """Plans behind a token that reaches the length limit."""

    def _num_new_tokens(self, seq, output):
        return seq.num_tokens + seq.num_output_placeholders - seq.num_computed_tokens


class Blocking(AsyncScheduler):
    """Waits for each token before the next one is planned."""

    def _num_new_tokens(self, seq, output):
        return min(seq.num_tokens, self.longest) - seq.num_computed_tokens


@pytest.mark.parametrize("broken", [Wasteful, Blocking])
def test_recordings_notice_what_a_plan_should_not_want(broken):
    """The comparison itself, without a function that says what is wrong before it."""
    assert compare_calls(AsyncScheduler) == (630, 7)
    with pytest.raises(Fault, match="recording a00_fam0, call"):
        compare_calls(broken)


class NamesHoles(AsyncScheduler):
    """Names blocks that end with a token on its way."""

    def _append_sampled(self, seq, token_ids):
        if seq.seq_id in self.kv_manager.block_tables:
            self.kv_manager.cache_blocks(seq, seq.num_computed_tokens)
        super()._append_sampled(seq, token_ids)


class Raises(AsyncScheduler):
    def _num_new_tokens(self, seq, output):
        return 1 // 0


@pytest.mark.parametrize(("broken", "told"), [(NamesHoles, "can be found"), (Raises, "ZeroDivis")])
def test_drawn_workloads_notice_what_raises_and_what_is_not_consistent(broken, told):
    assert compare_drawn(AsyncScheduler, 1) == 240
    with pytest.raises(Fault, match=told):
        compare_drawn(broken, 1)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("lab", "mistake", "told"),
    [
        ("wanted", lambda known, placeholders, computed, most: known - computed, "need not wait"),
        ("take_over", lambda p, computed, size: (max(0, p - 1), computed // size), "no name yet"),
        ("move", lambda source, ids, target, into, n: None, "has not got"),
    ],
    ids=["wanted", "take_over", "move"],
)
def test_a_milestone_notices_its_break(lab, mistake, told, seed):
    verdict = labs.FUNCTION_LABS[lab].verdict(mistake, seed)
    assert verdict.outcome == "FAILED"
    assert told in verdict.text


# -- what the notebook breaks ----------------------------------------------------------------------


def crowd(kind=Request):
    params = make_request("", 6, 16).sampling_params
    return [kind(name, [number] * 6, params) for number, name in enumerate("ABC", 1)]


class Hasty(Request):
    is_in_flight = False


@pytest.mark.parametrize("num_blocks", [8, 9, 10, 12])
def test_who_resumes_before_a_stale_token_came_says_it_twice(num_blocks):
    limits = {"num_blocks": num_blocks, "num_plans": 3, "enable_prefix_caching": False}
    run_ahead(right := crowd(), **limits)
    assert wrong_answers(right) == []
    run_ahead(wrong := crowd(Hasty), **limits)
    assert wrong_answers(wrong)


class Eager(KVCacheManager):
    def cache_blocks(self, seq, num_tokens):
        super().cache_blocks(seq, seq.num_computed_tokens)


def test_a_block_with_a_placeholder_in_it_is_found_by_none_and_noticed_with_three_plans():
    def found(manager):
        requests = [make_request("A", 6, 6), make_request("C", [0] * 6 + [11, 23, 47], 2)]
        requests[1].arrival_time = 12
        trace = run_ahead(requests, num_blocks=20, kv_cache_manager_cls=manager)
        return next(r.num_computed_tokens for r in trace.of(Scheduled) if r.seq_id == "C")

    assert (found(KVCacheManager), found(Eager)) == (8, 4)
    with pytest.raises(AssertionError, match="can be found"):
        run_ahead(crowd(), num_blocks=20, num_plans=3, kv_cache_manager_cls=Eager)


@pytest.mark.parametrize("num_plans", [2, 3, 4])
def test_a_stop_token_wastes_one_for_each_other_plan_and_a_length_none(num_plans):
    trace = run_ahead([make_request("A", 6, 12)], num_blocks=20, num_plans=num_plans)
    assert not list(trace.of(TokensWasted))
    stops = make_request("A", 6, 12, stop_token_ids=[47])  # the third that it says
    trace = run_ahead([stops], num_blocks=20, num_plans=num_plans)
    assert sum(record.num_tokens for record in trace.of(TokensWasted)) == num_plans - 1


class Forgetful(SteadyConnector):
    def request_finished(self, seq, block_ids):
        _, params = super().request_finished(seq, block_ids)
        return False, params


TEXT = "Once upon a time there was a little girl who lived in a village"


def test_a_sent_block_that_is_forgotten_changes_the_answer(tmp_path):
    right = serve(make_engine(), Asked(0, "C", TEXT, 5))["C"].outputs[0].token_ids
    for connector in (SteadyConnector, Forgetful):
        folder = str(tmp_path / connector.__name__)
        sender = make_engine(folder, "kv_producer", connector)
        to_send = Asked(0, "C", TEXT, 1, {"do_remote_decode": True})
        other = Asked(1, "E", "The best way to learn a", 6)
        params = serve(sender, to_send, other)["C"].kv_transfer_params
        receiver = make_engine(folder, "kv_consumer")
        got = serve(receiver, Asked(0, "C", TEXT, 5, params))["C"].outputs[0].token_ids
        assert (got == right) == (connector is SteadyConnector)
        for trace in (sender.trace, receiver.trace):
            steps = [next(trace.of(kind), None) for kind in (TransferStarted, TransferEnded)]
            if None not in steps:
                assert steps[1].step - steps[0].step in (NUM_STEPS - 1, NUM_STEPS)


# -- goodput ---------------------------------------------------------------------------------------


def test_goodput_is_between_a_rate_that_is_served_in_time_and_one_that_is_not():
    found = goodput_by_limit([40, 80], [2, 4, 8, 16], num_prefill=0, cost=OWN)
    assert found[40] < found[80]
    for limit, rate in found.items():
        for factor, enough in ((0.7, True), (1.4, False)):
            times = serve_pools(rate * factor, 0, OWN)
            assert (share_in_time(times, limit / 1000) >= 0.9) == enough


def test_pools_are_those_of_the_simulator():
    (alone,) = simulate_pools([SimRequest(0.0, [1] * 512, 64)], OWN, first_token="prefill")
    (one,) = serve_pools(1.0, 1, OWN, num_requests=1)
    assert (one.ttft, one.tpot) == pytest.approx((alone.ttft, alone.tpot))
