"""The simulator: a roofline by hand, seeded workloads, and invariants after every run."""

import gzip
import json
import math
import statistics
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from helpers import examples
from hypothesis import assume, given
from hypothesis import strategies as st
from typer.testing import CliRunner

import minivllm.sim
from minivllm.lab.sim.__main__ import app
from minivllm.lab.sim.cost import HARDWARE, MODELS, CostModel, Hardware, attended_pairs
from minivllm.lab.sim.interconnects import Link
from minivllm.lab.sim.machines import NODES
from minivllm.lab.sim.make import make_request
from minivllm.lab.sim.report import as_dict, describe
from minivllm.lab.sim.result import percentiles
from minivllm.lab.sim.run import MANAGERS
from minivllm.lab.sim.sharing import measure_sharing
from minivllm.lab.sim.waste import PAPER
from minivllm.lab.sim.workloads import (
    WORKLOADS,
    SimRequest,
    alpaca_like,
    multi_turn_chat,
    several_answers,
    shared_prefix,
    sharegpt_like,
)
from minivllm.scheduling.policies import SchedulingPolicy
from minivllm.sim import dry_run, prefix_hits, replay, simulate
from minivllm.trace.records import RankWorked, StepEnded, StepPlanned, StepStarted

SEVERAL = ("n-samples", "beams")  # answers to one prompt: 4 of them
A100, LLAMA = HARDWARE["a100"], MODELS["llama-8b"]


# -- the roofline ------------------------------------------------------------------------------


def test_shapes_by_hand():
    assert LLAMA.kv_bytes_per_token == 2 * 32 * 8 * 128 * 2 == 131_072
    assert MODELS["opt-13b"].kv_bytes_per_token == 800 * 1024, "the paper's 800 KB"
    assert LLAMA.weight_bytes == 16.06e9
    assert MODELS["embedded"].kv_bytes_per_token == 2 * 5 * 4 * 64 * 4


def test_one_decode_is_bound_by_bandwidth():
    """One token that sees 1,000: all weights, 1,000 tokens' K and V read, and one written."""
    seconds = CostModel(A100, LLAMA).step_seconds(1, 1000, 1001)
    assert seconds == pytest.approx((16.06e9 + 1001 * 131_072) / 2.0e12 + 1e-3)


def test_a_prefill_is_bound_by_arithmetic():
    """2,000 tokens of a new prompt: 2 operations per parameter each, and 2,001,000 pairs."""
    pairs = attended_pairs(0, 2000)
    assert pairs == sum(range(1, 2001)) == 2_001_000
    seconds = CostModel(A100, LLAMA).step_seconds(2000, pairs, 4000)
    flops = 2 * 8.03e9 * 2000 + 4 * 32 * 32 * 128 * pairs
    assert seconds == pytest.approx(flops / 312e12 + 1e-3)
    assert flops / 312e12 > (16.06e9 + 4000 * 131_072) / 2.0e12


@given(computed=st.integers(0, 50), new=st.integers(1, 50))
def test_attended_pairs(computed, new):
    assert attended_pairs(computed, new) == sum(computed + i for i in range(1, new + 1))


def test_blocks_are_what_the_weights_leave():
    left = 0.9 * 80e9 - 16.06e9
    assert CostModel(A100, LLAMA).num_blocks(16) == int(left // (131_072 * 16)) == 26_674
    phone = replace(A100, name="phone", memory_bytes=8e9)
    with pytest.raises(ValueError, match=r"llama-8b has 16.1 GB of weights, and 90% of phone is 7"):
        CostModel(phone, LLAMA).num_blocks(16)
    with pytest.raises(ValueError, match="gpu_memory_utilization must be a number above 0 and at"):
        CostModel(A100, LLAMA).num_blocks(16, 1.5)


def test_a_whole_request_by_hand():
    """A prompt of 10 and an answer of 3: three steps, the clock is their sum."""
    result = simulate([SimRequest(5.0, [1] * 10, 3)])
    cost = CostModel(A100, LLAMA)
    first = cost.step_seconds(10, 55, 20)
    second, third = cost.step_seconds(1, 11, 12), cost.step_seconds(1, 12, 13)
    (times,) = result.requests
    assert times.ttft == pytest.approx(first)
    assert times.tpot == pytest.approx((second + third) / 2)
    assert list(result.inter_token_times) == pytest.approx([second, third])
    assert result.seconds == pytest.approx(5 + first + second + third)
    assert result.num_steps == 3
    held = [10 / 16, 11 / 16, 12 / 16]
    weights = [first, second, third]
    mean = sum(h * w for h, w in zip(held, weights, strict=True)) / sum(weights)
    assert result.tokens_in_held == pytest.approx(mean)


# -- workloads ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_same_seed_is_the_same_workload(name):
    make = WORKLOADS[name]
    assert make(50, 2.0, 7) == make(50, 2.0, 7) != make(50, 2.0, 8)
    assert len(make(53)) == 53


@pytest.mark.parametrize(
    ("make", "prompt", "output"), [(sharegpt_like, 161, 338), (alpaca_like, 19, 58)]
)
def test_mean_lengths_are_the_papers(make, prompt, output):
    workload = make(10_000, seed=1)
    assert statistics.mean(len(r.prompt_token_ids) for r in workload) == pytest.approx(prompt, 0.04)
    assert statistics.mean(r.num_output for r in workload) == pytest.approx(output, 0.04)
    assert all(len(r.prompt_token_ids) + r.num_output <= 2048 for r in workload)


def test_arrivals():
    times = [r.arrival_time for r in alpaca_like(5000, rate=4.0)]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(5000 / 4, rel=0.05)
    assert {r.arrival_time for r in alpaca_like(50)} == {0.0}


def test_a_system_prompt_is_shared_and_users_differ():
    a, b = shared_prefix(2, num_shared=32)
    assert a.prompt_token_ids[:32] == b.prompt_token_ids[:32]
    assert not set(a.prompt_token_ids[32:]) & set(b.prompt_token_ids[32:])


def test_a_turn_holds_the_whole_conversation():
    workload = multi_turn_chat(10, num_turns=4)
    assert [r.after for r in workload] == [None, 0, 1, 2, None, 4, 5, 6, None, 8]
    for index, turn in enumerate(workload):
        if turn.after is not None:
            before = workload[turn.after]
            assert turn.after == index - 1
            past = before.prompt_token_ids + [before.prompt_token_ids[-1]] * before.num_output
            assert turn.prompt_token_ids[: len(past)] == past
            assert len(turn.prompt_token_ids) > len(past)


# -- the numbers -------------------------------------------------------------------------------


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=60))
def test_percentiles_are_those_of_statistics(values):
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    got = percentiles(values, (1, 50, 90, 99))
    assert list(got.values()) == pytest.approx([cuts[0], cuts[49], cuts[89], cuts[98]], abs=1e-6)
    assert percentiles(values, (0, 100)) == {"p0": min(values), "p100": max(values)}


def test_percentiles_of_little():
    assert percentiles([3.0]) == {"p50": 3.0, "p90": 3.0, "p99": 3.0}
    assert all(math.isnan(value) for value in percentiles([]).values())
    with pytest.raises(ValueError, match="a percentile must be between 0 and 100, got 101"):
        percentiles([1.0], (101,))


def books_balance(workload, result):
    assert len(result.requests) == len(workload)
    for entry, times in zip(workload, result.requests, strict=True):
        assert times.num_prompt_tokens == len(entry.prompt_token_ids)
        assert times.num_output_tokens == entry.num_output
        assert times.arrival_time < times.first_token_time <= times.finished_time <= result.seconds
        if entry.after is None:
            assert times.arrival_time == entry.arrival_time
        else:
            after = result.requests[entry.after].finished_time
            assert times.arrival_time == after + entry.arrival_time
    num_output = sum(entry.num_output * entry.n for entry in workload)
    gaps_of = [entry.n * (entry.num_output - 1) for entry in workload]
    assert len(result.inter_token_times) == sum(gaps_of)
    assert result.output_throughput * result.seconds == pytest.approx(num_output)
    if all(entry.n == 1 for entry in workload):
        gaps = sum(r.finished_time - r.first_token_time for r in result.requests)
        assert sum(result.inter_token_times) == pytest.approx(gaps)
    assert sum(result.memory) == pytest.approx(1)
    assert 0 < result.tokens_in_held <= 1
    assert 0 <= result.prefix_hit_rate <= 1


@pytest.mark.slow
@examples(25)
@given(
    seed=st.integers(0, 10_000),
    num_requests=st.integers(1, 12),
    name=st.sampled_from(sorted(WORKLOADS)),
    manager=st.sampled_from(MANAGERS),
    policy=st.sampled_from(["fcfs", "prefill_first", "static"]),
    chunked=st.booleans(),
    caching=st.booleans(),
    sizes=st.sampled_from([None, (1, 1, 3), (2, 3, 1), (4, 2, 2)]),
    overlaps=st.booleans(),
)
def test_any_run_serves_everybody(
    seed, num_requests, name, manager, policy, chunked, caching, sizes, overlaps
):
    rng = Random(seed)
    assume(name not in SEVERAL or manager == "paged")  # slabs cannot share
    workload = WORKLOADS[name](num_requests, rng.choice([0.5, 50.0, math.inf]), seed)
    cluster = {"hardware": replace(A100, api_s_per_token=rng.choice([0.0, 1e-4, 0.05]))}
    if sizes is not None and manager == "paged":
        names = (f"{name}_parallel_size" for name in ("tensor", "pipeline", "data"))
        cluster = {"hardware": "8xa100", **dict(zip(names, sizes, strict=True))}
    stops = name not in SEVERAL and rng.random() < 0.5
    workload = [replace(entry, stops=stops) for entry in workload]
    overlaps &= manager == "paged"
    result = simulate(
        workload,
        **cluster,
        manager=manager,
        policy=policy,
        num_blocks=(4 if name in SEVERAL else 1) * 2048 // 8 + 1 + rng.randrange(200),
        block_size=8,
        max_model_len=2048,
        max_num_seqs=rng.randint(4 if name in SEVERAL else 1, 9),
        max_num_batched_tokens=2048 if not chunked else rng.choice([16, 100, 2048]),
        enable_chunked_prefill=chunked,
        enable_prefix_caching=caching,
        async_scheduling=overlaps,
        disable_frontend_multiprocessing=rng.random() < 0.5,
    )
    books_balance(workload, result)
    # behind a stop token every plan in flight has one token more, if there was one
    assert (result.num_wasted_tokens > 0) <= (stops and overlaps)
    assert result.num_wasted_tokens <= num_requests


@pytest.fixture
def counting_tables(monkeypatch):
    """Beside the meter, every step's block tables are counted; returns what they hold."""
    from minivllm.lab.sim.slot_usage import MemoryMeter

    def add(meter, seconds, num_seen, num_empty):
        manager = meter.scheduler.kv_manager
        tables = [table.block_ids for table in manager.block_tables.values()]
        held = manager.block_size * len({block for table in tables for block in table})
        unshared = manager.block_size * sum(map(len, tables))
        assert num_seen + num_empty == unshared
        counted.append((seconds, num_seen, held, unshared))
        real(meter, seconds, num_seen, num_empty)

    real, counted = MemoryMeter.add, []
    monkeypatch.setattr(MemoryMeter, "add", add)
    return counted


def test_the_paged_meter_agrees_with_the_block_tables(counting_tables):
    """Empty slots are counted from lengths; here they are counted in the tables themselves."""
    result = simulate(
        sharegpt_like(12),
        num_blocks=130,
        max_model_len=2048,
        max_num_batched_tokens=64,
        enable_prefix_caching=False,
    )
    assert len(counting_tables) == result.num_steps
    assert result.num_preemptions > 0
    total = 129 * 16 * sum(seconds for seconds, *_ in counting_tables)
    tokens, held = (sum(s * counts[i] for s, *counts in counting_tables) for i in (0, 1))
    assert result.memory.tokens == pytest.approx(tokens / total)
    assert result.memory.held == pytest.approx(held / total)
    assert result.saved_by_sharing == pytest.approx(0)


@pytest.mark.parametrize("beams", [False, True])
def test_answers_share_what_the_tables_say(counting_tables, beams):
    workload = several_answers(10, n=3, beams=beams)
    result = simulate(workload, num_blocks=150, enable_prefix_caching=False,
                      max_model_len=600)  # fmt: skip
    held, unshared = (sum(s * counts[i] for s, *counts in counting_tables) for i in (1, 2))
    assert result.saved_by_sharing == pytest.approx(1 - held / unshared)
    assert 0.02 < result.saved_by_sharing < 2 / 3


def test_samples_by_hand():
    """A prompt of 32 and 3 answers of 2: one prefill, then three of 3 blocks that share 2."""
    result = simulate([SimRequest(0.0, [1] * 32, 2, n=3)])
    cost = CostModel(A100, LLAMA)
    prefill = cost.step_seconds(32, 32 * 33 // 2, 64)
    decode = cost.step_seconds(3, 99, 102)
    assert result.seconds == pytest.approx(prefill + decode)
    assert list(result.inter_token_times) == pytest.approx([decode] * 3)
    assert result.output_throughput == pytest.approx(6 / result.seconds)
    held, unshared = 2 * prefill + 5 * decode, 2 * prefill + 9 * decode
    assert result.saved_by_sharing == pytest.approx(1 - held / unshared)


def test_who_follows_waits_for_the_last_sample():
    """Three samples and a budget of two: one of them ends later than the others."""
    workload = [SimRequest(0.0, [1] * 2, 4, n=3), SimRequest(1.0, [2] * 2, 1, after=0)]
    result = simulate(workload, max_num_batched_tokens=2)
    first, second = result.requests
    assert second.arrival_time == first.finished_time + 1.0
    assert first.num_samples == 3
    assert len(result.inter_token_times) == 3 * 3


def test_a_client_holds_back_whom_it_has_no_room_for():
    """One place at the client: each is sent when the one before is done, or when its time comes."""
    workload = [SimRequest(time, [1 + i] * 4, 3) for i, time in enumerate((0.0, 0.0, 0.0, 9.0))]
    a, b, c, d = simulate(workload, max_concurrency=1).requests
    assert (a.arrival_time, b.arrival_time, c.arrival_time) == (0, a.finished_time, b.finished_time)
    assert d.arrival_time == 9.0
    two = simulate(workload, max_concurrency=2).requests
    assert [r.arrival_time for r in two] == [0, 0, two[0].finished_time, 9.0]


def test_a_client_with_room_for_all_changes_nothing():
    workload = alpaca_like(60, 30)
    free = simulate(workload, max_num_seqs=4)
    assert simulate(workload, max_num_seqs=4, max_concurrency=60).requests == free.requests


def test_no_more_are_inside_than_the_client_sends():
    """Requests held back are sent later, in the same order, and their wait counts all the same."""
    workload = alpaca_like(80, 40)
    free = simulate(workload, max_num_seqs=4)
    held = simulate(workload, max_num_seqs=4, max_concurrency=4)
    moments = [(r.arrival_time, 1) for r in held.requests]
    moments += [(r.finished_time, -1) for r in held.requests]
    inside = [sum(change for when, change in moments if when <= now) for now, _ in moments]
    assert max(inside) == 4
    for entry, sent, planned in zip(workload, held.requests, free.requests, strict=True):
        assert sent.arrival_time >= planned.arrival_time == entry.arrival_time
        assert sent.first_token_time == planned.first_token_time, "the same work at the same time"
    assert held.ttft["p99"] < 0.1 * free.ttft["p99"]


@pytest.mark.slow
def test_sharing_beside_the_paper():
    """Alpaca-like samples save about what the paper says; longer prompts save more."""
    rows = {(row.lengths, row.beams): row for row in measure_sharing(12)}
    for row in rows.values():
        assert list(row.saved) == [2, 4, 6]
        assert list(row.saved.values()) == sorted(row.saved.values())
    for beams in (False, True):
        alpaca, sharegpt = rows["alpaca", beams], rows["sharegpt", beams]
        low, high = alpaca.paper
        assert low - 0.1 < alpaca.saved[2] < alpaca.saved[6] < high + 0.1
        assert sharegpt.saved[6] > alpaca.saved[6]
    assert rows["alpaca", True].saved[2] > rows["alpaca", False].saved[6]


def test_the_papers_bars_are_whole():
    for bar in PAPER.values():
        if bar.reserved is not None:
            assert sum(bar[1:]) == pytest.approx(1, abs=0.0015)


def test_a_tight_pool_preempts_and_costs_time():
    workload = sharegpt_like(30)
    roomy = simulate(workload, model="opt-13b", enable_prefix_caching=False)
    tight = simulate(workload, model="opt-13b", num_blocks=200, enable_prefix_caching=False)
    assert roomy.num_preemptions == 0 < tight.num_preemptions
    assert tight.seconds > roomy.seconds
    assert sum(r.num_preemptions for r in tight.requests) == tight.num_preemptions
    assert roomy.memory_under_load.held == 0, "no request ever had to wait"
    assert tight.memory_under_load.held > 0.9


@pytest.mark.slow
def test_prefix_caching_pays_in_a_conversation():
    workload = multi_turn_chat(40, rate=1.0)
    warm, cold = simulate(workload), simulate(workload, enable_prefix_caching=False)
    assert cold.prefix_hit_rate == 0 < 0.5 < warm.prefix_hit_rate
    assert warm.ttft["p90"] <= cold.ttft["p90"]
    assert all((r.num_cached_tokens > 0) == (e.after is not None)
               for r, e in zip(warm.requests, workload, strict=True)
               if len(e.prompt_token_ids) > 64 or e.after is None)  # fmt: skip


@pytest.mark.slow
def test_continuous_batching_beats_static():
    workload = sharegpt_like(60, rate=8.0)
    continuous, static = simulate(workload), simulate(workload, policy="static")
    assert continuous.ttft["p50"] < static.ttft["p50"] / 5


@pytest.mark.slow
def test_better_hardware_is_faster():
    workload = alpaca_like(20)
    seconds = [simulate(workload, hardware=name).seconds for name in HARDWARE]
    assert seconds == sorted(seconds, reverse=True)
    own = Hardware("own", 1e15, 1e13, 200e9, overhead_s=0.0)
    assert simulate(workload, hardware=own, model=MODELS["embedded"]).seconds < seconds[-1]


class ShortestFirst(SchedulingPolicy):
    """A policy of one's own."""

    def key(self, request):
        return len(request.prompt_token_ids)


@pytest.mark.slow
def test_a_policy_of_ones_own():
    workload = sharegpt_like(30)
    result = simulate(workload, policy=ShortestFirst(), max_num_seqs=1)
    served = sorted(result.requests, key=lambda r: r.first_token_time)
    lengths = [r.num_prompt_tokens for r in served]
    assert lengths == sorted(lengths)


class NobodyEver(SchedulingPolicy):
    """Keeps everybody out."""

    def may_admit(self, running):
        return False


class NotYet(SchedulingPolicy):
    """Lets a request in at the fifth time of asking."""

    asked = 0

    def may_admit(self, running):
        self.asked += 1
        return self.asked >= 5


class WhenTwoCame(NotYet):
    """Lets requests in from the second time of asking on."""

    def may_admit(self, running):
        self.asked += 1
        return self.asked >= 2


def a_recording():
    path = Path(minivllm.lab.sim.__file__).parent / "golden"
    return json.loads(gzip.decompress(sorted(path.glob("*.json.gz"))[0].read_bytes()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda w: w["config"].update(block_size=0),
            r"config\['block_size'\] must be an integer from 1",
        ),
        (lambda w: w["config"].update(policy="lifo"), "scheduling_policy must be one of"),
        (lambda w: w["config"].update(enable_prefix_caching=1), "must be true or false, got 1"),
        (lambda w: w.update(requests={}), r"the workload's 'requests' must be a list, got \{\}"),
        (lambda w: w["requests"].append(3), r"must be an object, got 3"),
        (lambda w: w["requests"][0].update(max_tokens=-1), r"requests\[0\]\['max_tokens'\] must"),
        (lambda w: w["requests"][0].update(prompt_token_ids="abc"), "must be a list of integers"),
        (lambda w: w["requests"][0].update(id=7), r"requests\[0\]\['id'\] must be a string"),
    ],
)
def test_a_bad_recording_is_refused_by_name(change, message):
    workload = a_recording()
    change(workload)
    with pytest.raises(ValueError, match=message):
        replay(workload)


@pytest.mark.parametrize(
    "run",
    [
        lambda: simulate([SimRequest(0.0, [1], 1)] * 2, policy=NobodyEver()),
        lambda: replay(a_recording(), policy=NobodyEver()),
        lambda: dry_run([(3, 4)], num_blocks=300, policy=NobodyEver()),
    ],
)
def test_a_policy_that_admits_nobody_is_told_so(run):
    with pytest.raises(ValueError, match=r"policy NobodyEver admits no request: \d+ unfin"):
        run()


def test_a_policy_may_wait_while_somebody_is_to_come():
    workload = [SimRequest(0.0, [1], 1), SimRequest(9.0, [1], 1)]
    assert len(simulate(workload, policy=NotYet()).requests) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hardware": "abacus"}, "hardware must be one of 'laptop', 'a100', .* or a Hardware"),
        ({"model": "gpt"}, "model must be one of 'embedded', .* or a ModelShape, got 'gpt'"),
        ({"manager": "slab"}, "manager must be one of 'paged', 'contiguous-exact', .* got 'slab'"),
        ({"policy": "lifo"}, "scheduling_policy must be one of 'fcfs'"),
        ({"num_blocks": 1}, "num_blocks must be an integer from 2 to 10000000, got 1"),
        ({"block_size": 0}, "block_size must be an integer from 1 to 10000000, got 0"),
        ({"max_concurrency": 0}, "max_concurrency must be None or an integer of at least 1, got 0"),
        ({"max_num_seqs": 0}, "max_num_seqs must be an integer from 1 to 10000000, got 0"),
        ({"max_num_batched_tokens": 9, "enable_chunked_prefill": False}, "at least max_model_len="),
        ({"max_model_len": 3}, "has 4 tokens, but max_model_len is 3"),
        ({"async_scheduling": 1}, "async_scheduling must be True or False, got 1"),
        ({"async_scheduling": None}, "async_scheduling must be True or False, got None"),
        ({"async_scheduling": True, "manager": "contiguous-exact"}, "'paged' with several ranks"),
        ({"disable_frontend_multiprocessing": "no"}, "disable_frontend_multiprocessing must be Tr"),
    ],
)
def test_bad_input_is_refused_by_name(arguments, message):
    with pytest.raises(ValueError, match=message):
        simulate([SimRequest(0.0, [1, 2, 3, 4], 2)], **arguments)


RATES = "flops_per_s", "bytes_per_s", "device.bytes_per_s", "link.bytes_per_s"
SIZES = "memory_bytes", "num_devices", "flops_share", "bytes_share", "device.memory_bytes"
SECONDS = ("overhead_s", "link.latency_s", "network.latency_s", "flops_exponent",
           "launch_s_per_layer", "cpu_s_per_sequence", "device.overhead_s", "update_s",
           "device.cpu_s_per_sequence", "api_s_per_token")  # fmt: skip
TWO = [SimRequest(0.0, [1, 2, 3, 4], 2), SimRequest(9.0, [1, 2, 3, 4], 2)]


def altered(owner, field, value):
    """A copy in which one field, maybe that of a part, has another value."""
    name, _, rest = field.partition(".")
    return replace(owner, **{name: altered(getattr(owner, name), rest, value) if rest else value})


def own_hardware(field, value):
    """A node, or a device if only that has the field, with another value of it."""
    node = NODES["8xa100"]
    return altered(node if field.partition(".")[0] in vars(node) else A100, field, value)


@pytest.mark.parametrize("field", [*RATES, *SIZES, *SECONDS])
def test_a_number_that_no_time_can_be_made_of_is_refused(field):
    bad = [math.nan, -1.0, -math.inf, "fast", None, True]
    bad += [math.inf] * (field not in RATES) + [0] * (field not in SECONDS)
    for value in bad:
        with pytest.raises(ValueError, match=rf"hardware\.{field} must be .*, got {value!r}\."):
            simulate(TWO, hardware=own_hardware(field, value))


@pytest.mark.parametrize("field", ["device", "link", "network"])
def test_a_node_is_made_of_a_device_and_links(field):
    with pytest.raises(ValueError, match=rf"hardware\.{field} must be a \w+, got 'nvlink4'"):
        simulate(TWO, hardware=own_hardware(field, "nvlink4"))


@pytest.mark.parametrize("field", ["num_params", "num_layers", "num_kv_heads", "bytes_per_number"])
def test_a_model_of_no_size_is_refused(field):
    for value in (math.nan, math.inf, 0, -1, "many"):
        with pytest.raises(ValueError, match=rf"model\.{field} must be .*, got {value!r}\."):
            simulate(TWO, model=replace(LLAMA, **{field: value}))


def test_more_seconds_than_a_float_holds_are_refused():
    with pytest.raises(ValueError, match="a step on 'a100' takes more seconds than a float holds"):
        simulate(TWO, hardware=replace(A100, bytes_per_s=5e-324))
    node = replace(NODES["8xa100"], link=Link("slow", 5e-324, 0.0))
    with pytest.raises(ValueError, match="a step on '8xa100' takes more seconds than a float"):
        simulate(TWO, hardware=node, tensor_parallel_size=2)
    with pytest.raises(ValueError, match="a step on 'a100' takes more seconds than a float"):
        simulate(TWO, hardware=replace(A100, overhead_s=1e308, update_s=1e308))


WITHOUT_TIME = Hardware("ideal", math.inf, math.inf, 80e9, overhead_s=0.0)


@pytest.mark.parametrize("pp", [1, 2])
def test_steps_may_take_no_time(pp):
    node = NODES["8xa100"]
    ideal = replace(
        node, device=WITHOUT_TIME, link=Link("", math.inf, 0.0), launch_s_per_layer=0.0,
        cpu_s_per_sequence=0.0,
    )  # fmt: skip
    result = simulate(TWO, hardware=ideal, tensor_parallel_size=2, pipeline_parallel_size=pp)
    assert [r.finished_time for r in result.requests] == [0.0, 9.0]
    waits = simulate(TWO, hardware=ideal, pipeline_parallel_size=pp, policy=WhenTwoCame())
    # a pipeline asks for a plan of each stage before it waits
    assert [r.finished_time for r in waits.requests] == [9.0 if pp == 1 else 0.0, 9.0]
    with pytest.raises(ValueError, match="policy NobodyEver admits no request: 2 unfinished"):
        simulate(TWO, hardware=ideal, pipeline_parallel_size=pp, policy=NobodyEver())
    at_once = simulate(TWO[:1], hardware=ideal, pipeline_parallel_size=pp)
    assert at_once.output_throughput == math.inf
    assert as_dict(at_once)["output_throughput"] is None  # JSON has no number for it
    assert "inf requests/s" in describe(at_once)


@pytest.mark.parametrize("sizes", [{}, {"pipeline_parallel_size": 2}, {"data_parallel_size": 2}])
def test_a_full_client_of_a_policy_that_admits_nobody_is_told_so(sizes):
    workload = [SimRequest(0.0, [1], 1)] * 3
    with pytest.raises(ValueError, match="policy NobodyEver admits no request: 1 unfinished"):
        simulate(workload, hardware="8xa100", max_concurrency=1, policy=NobodyEver(), **sizes)
    kept = simulate(workload, hardware="8xa100", max_concurrency=1, **sizes)
    assert len(kept.requests) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (SimRequest(-1.0, [1], 1), r"workload\[1\].arrival_time must be .* got -1.0"),
        (SimRequest(0.0, [1], 1, after=1), r"workload\[1\].after must be None or the index of an"),
        (SimRequest(0.0, [1], 0), r"workload\[1\].num_output must be an integer of at least 1"),
        (SimRequest(0.0, [], 1), r"workload\[1\].prompt_token_ids must be a list of at least one"),
        (SimRequest(0.0, [1, "a"], 1), r"workload\[1\].prompt_token_ids must be a list of at"),
        (SimRequest(0.0, [1], 1, n=0), r"workload\[1\].n must be an integer of at least 1, got 0"),
        (SimRequest(0.0, [1], 1, stops=1), r"workload\[1\].stops must be True or False, .* got 1"),
        (SimRequest(0.0, [1], 1, beams=True, stops=True), r"workload\[1\].stops must be .*beams"),
        (SimRequest(0.0, [1], 1, n=300), "n is 300, but max_num_seqs is 256"),
        ((0.0, [1], 1), r"workload\[1\] must be a SimRequest, got \(0.0"),
    ],
)
def test_a_bad_workload_is_refused_by_name(entry, message):
    with pytest.raises(ValueError, match=message):
        simulate([SimRequest(0.0, [1], 1), entry])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: alpaca_like(0), "num_requests must be an integer of at least 1, got 0"),
        (lambda: alpaca_like(5, rate=0), "rate must be a number of requests per second above 0"),
        (lambda: shared_prefix(5, num_shared=-1), "num_shared must be an integer of at least 0"),
        (lambda: multi_turn_chat(5, num_turns=0), "num_turns must be an integer of at least 1"),
        (lambda: multi_turn_chat(5, think_time=-1), "think_time must be a number of seconds of"),
        (lambda: several_answers(5, n=0), "n must be an integer of at least 1, got 0"),
        (lambda: several_answers(5, lengths="x"), "lengths must be one of 'sharegpt', 'alpaca'"),
        (
            lambda: dry_run([(3, 4), (0, 4)], num_blocks=9),
            r"workload\[1\] must be \(prompt tokens, output",
        ),
        (
            lambda: dry_run([(3, -1)], num_blocks=9),
            r"workload\[0\] must be \(prompt tokens, output",
        ),
        (lambda: simulate([]), "workload must be at least one request, got 0"),
    ],
)
def test_a_workload_out_of_range_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# -- lanes of the CPU, of the device and of the API server ---------------------------------------

STEPS = 30
ONE = [SimRequest(0.0, [1] * 40, STEPS)]
CPU = {"overhead_s": 2e-3, "update_s": 3e-3, "cpu_s_per_sequence": 1e-3, "api_s_per_token": 5e-4}


def lanes_by_hand(device, before, after, api, overlaps):
    """Times at which the client has each token; steps in turn, or planned while others run."""
    cpu = free = told = 0.0
    ends, tokens = [], []

    def end(step):
        nonlocal cpu, told
        cpu = max(cpu, ends[step]) + after
        told = max(told, cpu) + api
        tokens.append(told)

    for step, seconds in enumerate(device):
        cpu += before
        free = max(free, cpu) + seconds
        ends.append(free)
        if not overlaps:
            end(step)
        elif step > 0:
            end(step - 1)
    if overlaps:
        end(len(device) - 1)
    return tokens


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("factor", [0.1, 1, 10])
def test_lanes_by_hand(factor, overlaps):
    """The CPU is the floor if it is slower than the device, and hidden if it is faster."""
    cpu = {name: factor * seconds for name, seconds in CPU.items()}
    hardware = replace(A100, **cpu)
    model = CostModel(hardware, LLAMA)
    device = [model.device_seconds(40, 40 * 41 // 2, 80)]
    device += [model.device_seconds(1, 40 + i, 41 + i) for i in range(1, STEPS)]
    after = cpu["update_s"] + cpu["cpu_s_per_sequence"]
    times = [cpu["overhead_s"], after, cpu["api_s_per_token"]]
    tokens = lanes_by_hand(device, *times, overlaps)
    result = simulate(ONE, hardware=hardware, async_scheduling=overlaps)
    gaps = [after - before for before, after in pairwise(tokens)]
    assert result.requests[0].first_token_time == pytest.approx(tokens[0])
    assert list(result.inter_token_times) == pytest.approx(gaps)
    assert result.seconds == pytest.approx(tokens[-1])
    steady = times[0] + times[1] + (not overlaps) * device[-2]
    assert gaps[-2] == pytest.approx(max(steady, device[-2]))


def test_three_lanes_are_the_gain_that_vllm_published():
    """33 % API server, 29 % scheduling, 38 % the device (vLLM's post of 5 September 2024)."""
    num_requests = 100
    workload = [SimRequest(0.0, [1 + i] * 128, 256) for i in range(num_requests)]
    alone = replace(HARDWARE["h100"], overhead_s=0.0)
    run = simulate(workload, hardware=alone)
    share = run.seconds / run.num_steps / 38
    cpu = {"overhead_s": 20 * share, "update_s": 9 * share}
    hardware = replace(alone, **cpu, api_s_per_token=33 * share / num_requests)
    one_process = {"disable_frontend_multiprocessing": True}
    before = simulate(workload, hardware=hardware, **one_process).seconds
    split = simulate(workload, hardware=hardware).seconds
    lanes = simulate(workload, hardware=hardware, async_scheduling=True).seconds
    both = simulate(workload, hardware=hardware, async_scheduling=True, **one_process).seconds
    ten_steps = replace(hardware, overhead_s=2 * share, update_s=0.9 * share)  # for one plan
    planned_for_ten = simulate(workload, hardware=ten_steps).seconds
    assert before / lanes == pytest.approx(1 / 0.38, rel=0.03)
    assert before / split == pytest.approx(1 / 0.67, rel=0.03)
    assert before / planned_for_ten == pytest.approx(1 / (0.38 + 0.029), rel=0.03)
    assert before / both == pytest.approx(1 / 0.67, rel=0.03), "planning and HTTP share the CPU"
    assert share * 38 > share * 33 > share * 29, "the device is the slowest lane"


@pytest.mark.parametrize("n", [1, 3])
def test_a_stop_token_wastes_one_token_and_a_limit_none(n):
    limits = [SimRequest(0.01 * i, [1 + i] * 9, 5 + i, n=n) for i in range(6)]
    stops = [replace(entry, stops=True) for entry in limits]
    for workload in (limits, stops):
        in_turn, overlapped = (simulate(workload, async_scheduling=b) for b in (False, True))
        for result in (in_turn, overlapped):
            assert [r.num_output_tokens for r in result.requests] == [5, 6, 7, 8, 9, 10]
        assert in_turn.num_wasted_tokens == 0
        assert overlapped.num_wasted_tokens == 6 * n * (workload is stops)
        told = "tokens behind the end of an answer" in describe(overlapped)
        assert told == (workload is stops)


def test_a_plan_is_made_while_the_device_has_the_one_before():
    result = simulate(ONE, async_scheduling=True, trace=True)
    planned = {r.step: r.time for r in result.trace.of(StepPlanned)}
    started = {r.step: r.time for r in result.trace.of(StepStarted)}
    works = [(r.plan, r.start, r.end) for r in result.trace.of(RankWorked)]
    assert len(works) == STEPS
    for (before, _, end), (plan, start, _) in pairwise(works):
        assert plan == before + 1
        assert planned[plan] == pytest.approx(started[plan] + A100.overhead_s)
        assert planned[plan] < end == start
    assert list(result.trace.of(StepEnded))[-1].time == result.seconds


def test_a_nodes_cpu_is_counted_once():
    """Its kernels are launched beside it; the time for each sequence is hidden behind it."""
    node = NODES["8xa100"]
    workload = [SimRequest(0.0, [1 + i] * 64, 40) for i in range(64)]
    options = {"hardware": node, "model": "llama-2-70b", "tensor_parallel_size": 8}
    in_turn = simulate(workload, **options)
    overlapped = simulate(workload, **options, async_scheduling=True)
    launch = 80 * node.launch_s_per_layer
    assert overlapped.itl["p50"] == pytest.approx(launch)
    assert in_turn.itl["p50"] == pytest.approx(launch + 64 * node.cpu_s_per_sequence)


def test_a_client_waits_for_what_the_api_server_has_not_sent():
    """It asks again when it has the answer, not when the engine has it."""
    slow = replace(A100, api_s_per_token=0.5)
    first, second = simulate(ONE * 2, hardware=slow, max_concurrency=1).requests
    assert second.arrival_time == first.finished_time >= 0.5 * STEPS
    follower = SimRequest(1.0, [2] * 4, 2, after=0)
    first, second = simulate([*ONE, follower], hardware=slow).requests
    assert second.arrival_time == first.finished_time + 1.0


# -- the command -------------------------------------------------------------------------------


@pytest.mark.slow
def test_run_prints_for_people_and_for_programs():
    done = CliRunner().invoke(
        app,
        ["run", "--workload", "chat", "--requests", "20", "--rate", "2", "--hardware", "h200",
         "--policy", "prefill_first", "--json"],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "chat on llama-8b, h200, paged, prefill_first"
    for name in ("throughput", "TTFT", "TPOT", "ITL", "preemptions", "prefix hits", "held memory"):
        assert any(line.startswith(name) for line in lines)
    numbers = json.loads(lines[-1])
    assert numbers["num_requests"] == 20
    assert numbers["ttft"]["p50"] <= numbers["ttft"]["p90"] <= numbers["ttft"]["p99"]
    result = simulate(multi_turn_chat(20, rate=2.0), hardware="h200", policy="prefill_first")
    expected = as_dict(result)
    del expected["wall_seconds"], numbers["wall_seconds"]
    assert numbers == expected


def test_run_overlaps():
    arguments = ["run", "--requests", "8", "--rate", "inf", "--async-scheduling", "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    head, *_, last = done.stdout.splitlines()
    assert head == "sharegpt on llama-8b, a100, paged, fcfs, asynchronous scheduling"
    assert json.loads(last)["seconds"] < simulate(sharegpt_like(8)).seconds


def test_run_on_slabs_without_chunks():
    arguments = ["run", "--requests", "5", "--rate", "inf", "--manager", "contiguous-max",
                 "--allocator", "first_fit", "--no-chunked-prefill", "--no-prefix-caching",
                 "--max-num-batched-tokens", "8192", "--seed", "3"]  # fmt: skip
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "426,768 slots\n" in done.stdout


def test_one_token_each_has_no_time_between_tokens():
    result = simulate([SimRequest(0.0, [1], 1)])
    assert as_dict(result)["itl"] == {"p50": None, "p90": None, "p99": None}
    assert "ITL          none" in describe(result)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--workload", "nonsense"], "workload must be one of 'sharegpt', 'alpaca', "),
        (["run", "--requests", "0"], "num_requests must be an integer of at least 1, got 0"),
        (["run", "--requests", "3", "--model", "opt-13b", "--hardware", "x"], "hardware must be"),
        (["waste", "--allocator", "pile"], "allocator must be one of 'buddy', 'first_fit'"),
        (["replay", "nowhere.json", "--out", "x"], "nowhere.json"),
    ],
)
def test_bad_input_to_the_command_is_one_sentence(arguments, message):
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert done.stderr.startswith("Error: ")
    assert message in done.stderr


@pytest.mark.slow
def test_sharing_prints_the_papers_ranges_beside_ours():
    done = CliRunner().invoke(app, ["sharing", "--requests", "5"])
    assert done.exit_code == 0, done.output
    for text in ("6.1% to 9.8%", "16.2% to 30.5%", "alpaca-like", "n=6", "quoted"):
        assert text in done.stdout


def test_a_recording_that_is_not_json_is_named(tmp_path):
    for name, content in (("a.json", b"{"), ("a.json.gz", b"no gzip")):
        path = tmp_path / name
        path.write_bytes(content)
        done = CliRunner().invoke(app, ["replay", str(path), "--out", str(tmp_path / "out")])
        assert done.exit_code == 2
        assert f"{path} is not JSON" in " ".join(done.stderr.split())


@pytest.mark.slow
def test_waste_prints_the_papers_numbers_beside_ours():
    done = CliRunner().invoke(app, ["waste", "--requests", "60"])
    assert done.exit_code == 0, done.output
    for number in ("(20.4%)", "(26.8%)", "(38.2%)", "(96.3%)", "(57.3%)", "(36.6%)"):
        assert number in done.stdout


@pytest.mark.parametrize(("interval", "second"), [(0, 0), (8, 40), (16, 32), (None, 40)])
def test_a_dry_run_has_groups(interval, second):
    """Siblings with a stem of 40 tokens: of the second one the interval decides, the third hits."""
    stem = list(range(40))
    requests = [
        make_request(name, [*stem, *range(100 * i, 100 * i + 7)], 3, arrival_time=4 * i)
        for i, name in enumerate("ABC", 1)
    ]
    trace = dry_run(
        requests,
        num_blocks=60,
        block_size=4,
        max_num_batched_tokens=64,
        enable_prefix_caching=True,
        sliding_windows=(None, 9),
        prefix_cache_retention_interval=interval,
    )
    assert list(prefix_hits(trace).values()) == [0, second, 40]
    assert [group.kind for group in trace.groups] == ["full", "window 9"]
    assert trace.state_at(5, "schedule").num_held_by_group == [12, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sliding_windows": ()}, r"sliding_windows must be one for each group, got \(\)"),
        ({"sliding_windows": (None, 0)}, r"sliding_windows\[1\] must be None, or an integer of at"),
        ({"sliding_windows": (9.5,)}, r"sliding_windows\[0\] must be None, or an integer of at"),
        ({"prefix_cache_retention_interval": 8}, "no sliding-window or Mamba KV cache group"),
        ({"sliding_windows": (9,), "prefix_cache_retention_interval": 6}, "multiple of scheduler"),
    ],
)
def test_groups_of_a_dry_run_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        dry_run([(9, 2)], num_blocks=20, block_size=4, **arguments)
