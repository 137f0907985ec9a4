"""A cluster on paper: links and ranks by hand, a published table, pipelines, replicas, lanes."""

import json
from collections import Counter, defaultdict
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from minivllm.lab.sim.__main__ import app
from minivllm.lab.sim.cluster import Cluster, StageCost, thin
from minivllm.lab.sim.interconnects import LINKS, Link, ring_bytes
from minivllm.lab.sim.machines import NODES, Node
from minivllm.lab.sim.report import as_dict
from minivllm.scheduling.policies import SchedulingPolicy
from minivllm.sim import HARDWARE, MODELS, CostModel, SimRequest, alpaca_like, simulate
from minivllm.trace.records import Communicated, RankWorked, Scheduled, StepEnded
from minivllm.viz import save_chrome_trace, timeline

LLAMA, A100 = MODELS["llama-2-70b"], NODES["8xa100"]


def prompts(count, num_prompt, num_output, time=0.0):
    return [SimRequest(time, [1 + i] * num_prompt, num_output) for i in range(count)]


def run(workload, node="8xa100", model="llama-2-70b", tp=1, pp=1, dp=1, **options):
    sizes = {"tensor_parallel_size": tp, "pipeline_parallel_size": pp, "data_parallel_size": dp}
    return simulate(workload, hardware=node, model=model, **sizes, **options)


# -- links and ranks ---------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 8])
def test_an_all_reduce_by_hand(n):
    """A ring, played: pieces go around once to be added up, and once more to be told."""
    pieces = [[rank + 10 * index for index in range(n)] for rank in range(n)]
    sums = [sum(column) for column in zip(*pieces, strict=True)]
    sent = [0] * n
    for step in range(2 * (n - 1)):
        moved = [((rank - step) % n, pieces[rank][(rank - step) % n]) for rank in range(n)]
        for rank, (index, value) in enumerate(moved):
            sent[rank] += 1
            own = pieces[(rank + 1) % n]
            own[index] = own[index] + value if step < n - 1 else value
    assert all(own == sums for own in pieces)
    num_bytes = 1000 * n
    assert ring_bytes(num_bytes, n) == pytest.approx(1000 * sent[0])
    seconds = Link("", 1e9, 1e-6).all_reduce_seconds(num_bytes, n)
    assert seconds == pytest.approx(sent[0] * (1e-6 + 1000 / 1e9))


def test_a_rank_by_hand():
    """At TP 4 a rank has a quarter of everything, and sums [tokens, 8192] twice in each layer."""
    node = Node("own", HARDWARE["a100"], 4, Link("", 1e11, 1e-6), LINKS["ethernet-25g"])
    (stage,) = Cluster(node, LLAMA, 4).stages
    memory = (LLAMA.weight_bytes + 1001 * LLAMA.kv_bytes_per_token) / 4 / 2.0e12
    sums = (2 * 80 + 1) * 2 * 3 * (1e-6 + 8192 * 2 / 4 / 1e11)
    assert stage.step_seconds(1, 1000, 1001) == pytest.approx(memory + sums)
    flops = (2 * 68.98e9 * 2000 + 4 * 80 * 64 * 128 * 2_001_000) / 4
    sums = (2 * 80 + 1) * 2 * 3 * (1e-6 + 2000 * 8192 * 2 / 4 / 1e11)
    assert stage.step_seconds(2000, 2_001_000, 4000) == pytest.approx(flops / 312e12 + sums)


def test_one_rank_that_reaches_its_peaks_is_the_roofline():
    node = Node("own", HARDWARE["a100"], 1, LINKS["pcie4"], LINKS["ethernet-25g"])
    plain = CostModel(HARDWARE["a100"], LLAMA).step_seconds(7, 700, 800) - 1e-3  # its overhead
    assert StageCost(node, LLAMA, 0, 1, 1).step_seconds(7, 700, 800) == pytest.approx(plain)


@pytest.mark.parametrize(("num_ranks", "kv_heads"), [(1, 8), (2, 4), (8, 1), (16, 1), (64, 1)])
def test_kv_heads_are_repeated_where_there_are_fewer_than_ranks(num_ranks, kv_heads):
    part = thin(LLAMA, 40, num_ranks)
    assert part.kv_bytes_per_token == 2 * 40 * kv_heads * 128 * 2
    assert part.num_heads == 64 / num_ranks
    assert part.weight_bytes == pytest.approx(LLAMA.weight_bytes / 2 / num_ranks)


def test_beyond_a_machine_the_network_is_the_link():
    inside, between = A100.link, A100.network
    assert [stage.link for stage in Cluster(A100, LLAMA, 16).stages] == [between]
    stages = Cluster(A100, LLAMA, 4, 4).stages
    assert [stage.link for stage in stages] == [inside] * 4
    assert [stage.next_link for stage in stages[:3]] == [inside, between, inside]
    own = replace(LLAMA, num_heads=48, num_kv_heads=48)  # ranks 2 to 5 send beyond the machine
    assert Cluster(A100, own, 6, 2).stages[0].next_link == between


def test_the_last_stage_of_several_may_be_the_shortest():
    assert [s.num_layers for s in Cluster(A100, MODELS["llama-8b"], 1, 5).stages] == [6, 6, 7, 7, 6]


# -- published numbers -------------------------------------------------------------------------

# Splitwise, data/perf_model.csv of splitwise-sim: medians for Llama-2-70B, prompts of 512 tokens.
TOKEN_MS = {
    ("8xa100", 2): {1: 54.9, 16: 65.5, 32: 72.1},
    ("8xa100", 4): {1: 45.0},
    ("8xa100", 8): {1: 44.9, 16: 50.4, 32: 53.0, 64: 71.6},
    ("8xh100", 2): {1: 37.0, 16: 42.0, 32: 52.3},
    ("8xh100", 4): {1: 29.7},
    ("8xh100", 8): {1: 29.8, 16: 34.2, 32: 38.6, 64: 50.2},
}
PROMPT_MS = {
    ("8xa100", 2): {512: 197, 2048: 688, 8192: 2990},
    ("8xa100", 8): {2048: 274},
    ("8xh100", 2): {512: 84, 2048: 310, 8192: 1340},
    ("8xh100", 8): {2048: 137},
}


@pytest.mark.parametrize(("node", "tp"), TOKEN_MS)
def test_token_times_are_splitwises(node, tp):
    """Within 10 %: those that the node's numbers are fitted to, and those that they are not."""
    for num_sequences, milliseconds in TOKEN_MS[node, tp].items():
        result = run(prompts(num_sequences, 512, 12), node, tp=tp, max_num_batched_tokens=32768)
        assert 1e3 * result.itl["p50"] == pytest.approx(milliseconds, rel=0.1)


@pytest.mark.parametrize(("node", "tp"), PROMPT_MS)
def test_prompt_times_are_splitwises(node, tp):
    for num_tokens, milliseconds in PROMPT_MS[node, tp].items():
        result = run(prompts(1, num_tokens, 1), node, tp=tp, max_num_batched_tokens=8192,
                     max_model_len=8200)  # fmt: skip
        assert 1e3 * result.ttft["p50"] == pytest.approx(milliseconds, rel=0.12)


def test_a_second_device_gives_13_9_times_the_blocks():
    one, two = (run(prompts(1, 10, 2), model="33b", tp=tp).num_blocks for tp in (1, 2))
    assert two / one == pytest.approx(13.9, abs=0.05)
    assert MODELS["33b"].weight_bytes / 80e9 == pytest.approx(0.83, abs=0.005)


def test_more_ranks_do_not_help_where_the_cpu_is_the_floor():
    seconds = [run(prompts(1, 512, 9), tp=tp).itl["p50"] for tp in (2, 4, 8)]
    assert seconds[0] > 1.15 * seconds[1]
    assert seconds[1] == seconds[2]


# -- pipelines ---------------------------------------------------------------------------------


def lanes(trace):
    """Per rank ``(plan, start, end)`` of its work, in order."""
    found = defaultdict(list)
    for record in trace.of(RankWorked):
        found[record.rank].append((record.plan, record.start, record.end))
    return found


def busy(result):
    """The share of the time in which the first rank works."""
    return sum(end - start for _, start, end in lanes(result.trace)[0]) / result.seconds


def test_one_request_leaves_all_stages_but_one_idle():
    """Its next token needs the last one: a token passes all stages, by hand."""
    cluster = Cluster(NODES["8xh100"], LLAMA, 2, 4)
    result = run(prompts(1, 100, 3), "8xh100", tp=2, pp=4, trace=True)
    token = sum(stage.step_seconds(1, 101, 102) for stage in cluster.stages)
    token += sum(stage.send_seconds(1) for stage in cluster.stages[:3])
    assert result.inter_token_times[0] == pytest.approx(token + 0.32e-3)
    assert busy(result) < 0.26


def test_a_pipeline_is_full_only_if_limits_split_the_requests():
    """Eight prompts in one plan leave bubbles; a budget of one of them makes eight plans."""
    together = run(prompts(8, 1000, 1), pp=4, trace=True, max_num_batched_tokens=8000)
    apart = run(prompts(8, 1000, 1), pp=4, trace=True, max_num_batched_tokens=1000)
    assert busy(together) == pytest.approx(1 / 4, rel=0.05)
    assert busy(apart) == pytest.approx(8 / 11, rel=0.05), "three of eleven parts are bubbles"
    assert apart.seconds == pytest.approx(together.seconds * 11 / 32, rel=0.05)


def test_decodes_in_several_plans_read_the_weights_several_times():
    """So plans in flight bring decodes nothing, as long as one plan has room for all of them."""
    together = run(prompts(8, 256, 40), pp=4)
    apart = run(prompts(8, 256, 40), pp=4, max_num_batched_tokens=512)
    assert apart.itl["p50"] == pytest.approx(together.itl["p50"], rel=0.05)


def test_a_stage_has_one_plan_at_a_time_and_a_request_is_in_one():
    result = run(alpaca_like(10, 50.0), tp=2, pp=3, trace=True, max_num_batched_tokens=64)
    trace, found = result.trace, lanes(result.trace)
    assert sorted(found) == list(range(6))
    for rank in (0, 2, 4):
        assert found[rank] == found[rank + 1], "the ranks of a stage work in step"
        ends = [end for _, _, end in found[rank]]
        assert all(start >= end for (_, start, _), end in zip(found[rank][1:], ends, strict=False))
    for first, second in ((0, 2), (2, 4)):
        for (plan, _, end), (same, start, _) in zip(found[first], found[second], strict=True):
            assert plan == same
            assert start > end
    spans = {plan: (found[0][i][1], found[4][i][2]) for i, (plan, *_) in enumerate(found[0])}
    known = {}  # by request: when its last token is
    for record in trace.of(Scheduled):
        assert known.get(record.seq_id, 0.0) <= spans[record.step][0]
        if record.samples:
            known[record.seq_id] = spans[record.step][1]
    assert max(r.step - r.plan for r in trace.of(StepEnded) if r.plan not in (None, -1)) == 2


class NobodyEver(SchedulingPolicy):
    """Admits no request."""

    def may_admit(self, running):
        return False


def test_a_pipeline_that_admits_no_request_is_told_so():
    with pytest.raises(ValueError, match="policy NobodyEver admits no request: 1 unfinished"):
        run(prompts(1, 4, 4), pp=4, policy=NobodyEver())


class NotYet(SchedulingPolicy):
    """Lets a request in at the fifth time of asking."""

    asked = 0

    def may_admit(self, running):
        self.asked += 1
        return self.asked >= 5


def test_a_policy_may_wait_while_a_request_is_to_come():
    workload = [SimRequest(0.0, [1], 1), SimRequest(9.0, [1], 1)]
    first, _ = run(workload, pp=2, policy=NotYet()).requests
    assert 0.0 < first.first_token_time < 9.0


# -- replicas ----------------------------------------------------------------------------------


def homes(result):
    """Which replica served each request."""
    of = {}
    for index, trace in enumerate(result.traces):
        of |= dict.fromkeys(trace.request_ids, index)
    return [of[r.request_id] for r in result.requests]


def test_equal_replicas_are_taken_in_turn():
    result = run(prompts(7, 10, 5), model="llama-8b", dp=3, trace=True)
    assert homes(result) == [0, 1, 2, 0, 1, 2, 0]


def test_a_replica_with_less_to_do_is_taken():
    """Two long answers are under way; the short ones in between leave their replica free again."""
    workload = [SimRequest(float(at), [1 + at] * 9, 900 if at < 2 else 1) for at in range(6)]
    assert homes(run(workload, model="llama-8b", dp=3, trace=True)) == [0, 1, 2, 2, 2, 2]


def test_a_request_that_is_still_computed_counts():
    """A prefill takes a second. What it will have ended by then is not known before."""
    workload = [SimRequest(0.0, [1] * 4000, 1), SimRequest(0.5, [2] * 4, 1),
                SimRequest(0.6, [3] * 4, 1), SimRequest(2.0, [4] * 4, 1)]  # fmt: skip
    assert homes(run(workload, tp=2, dp=2, trace=True)) == [0, 1, 1, 1]


def test_two_replicas_are_two_engines():
    """Requests that never meet take as long as on one engine alone."""
    alone = run(prompts(3, 50, 20), tp=4)
    both = run([r for r in prompts(3, 50, 20) for _ in range(2)], tp=4, dp=2)
    assert both.seconds == pytest.approx(alone.seconds)
    assert both.num_steps == 2 * alone.num_steps
    assert both.output_throughput == pytest.approx(2 * alone.output_throughput)
    assert both.memory == pytest.approx(alone.memory)


def test_a_client_counts_the_requests_of_all_replicas():
    workload = alpaca_like(60, 400.0)
    requests = run(workload, tp=8, dp=2, max_concurrency=5).requests
    moments = [(r.arrival_time, 1) for r in requests] + [(r.finished_time, -1) for r in requests]
    inside = 0
    for _, change in sorted(moments):
        inside += change
        assert inside <= 5


# -- traces ------------------------------------------------------------------------------------


def test_a_trace_has_all_sums_and_their_bytes():
    """Each of 4 ranks adds up twice in each layer, and once for the embedding."""
    trace = run(prompts(3, 20, 4), tp=2, pp=2, trace=True).trace
    tokens = Counter()
    for record in trace.of(Scheduled):
        tokens[record.step] += record.num_tokens
    done = defaultdict(list)
    for record in trace.of(Communicated):
        done[record.rank, record.plan, record.group, record.op].append(record)
    sizes = dict.fromkeys(range(2), 2 * 40 + 1) | dict.fromkeys((2, 3), 2 * 40)
    for plan, num_tokens in tokens.items():
        for rank, count in sizes.items():
            sums = done[rank, plan, "tp", "all_reduce"]
            assert len(sums) == count
            assert {r.num_bytes for r in sums} == {num_tokens * 8192 * 2}
            assert [r.start for r in sums] == sorted(r.start for r in sums)
        for rank in range(2):
            (sent,) = done[rank, plan, "pp", "send"]
            (received,) = done[rank + 2, plan, "pp", "recv"]
            assert sent.num_bytes == received.num_bytes == 2 * num_tokens * 8192 * 2
            assert sent.end == pytest.approx(received.end)


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (4, 1), (1, 3)])
def test_a_trace_changes_nothing_and_can_be_drawn(tp, pp, tmp_path):
    workload = alpaca_like(5, 30.0)
    traced, plain = (run(workload, tp=tp, pp=pp, model="llama-8b" if pp == 1 else "llama-2-70b",
                         trace=trace) for trace in (True, False))  # fmt: skip
    assert traced.requests == plain.requests
    trace = traced.trace
    assert list(trace.of(StepEnded))[-1].time == pytest.approx(traced.seconds)
    assert (not list(trace.of(RankWorked))) == (tp == pp == 1)
    assert trace.state_at(trace.step).running == []
    assert "ms" in str(timeline(trace, clock="seconds"))
    save_chrome_trace(trace, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    last = max(event["ts"] + event.get("dur", 0) for event in events if "ts" in event)
    assert last == pytest.approx(1e6 * traced.seconds)


# -- bad input and the command -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tp": 3}, r"heads \(64\) must be divisible by tensor parallel size \(3\); .* be 1, 2, 4"),
        ({"tp": 2, "pp": 81}, "pipeline_parallel_size must be at most the number of layers, 80"),
        ({}, "llama-2-70b has 138.0 GB of weights, and 90% of a100 is 72.0 GB"),
        ({"tp": 2, "gpu_memory_utilization": 0.8}, "a rank's part of llama-2-70b has 69.0 GB"),
        ({"tp": 2, "node": "a100"}, "tensor_parallel_size must be 1 on a100, a single device; 8xa"),
        ({"pp": 2, "node": "h100"}, "pipeline_parallel_size must be 1 on h100, a single device"),
        ({"tp": 0}, "tensor_parallel_size must be an integer from 1 to 1024, got 0"),
        ({"tp": 4, "dp": 1.5}, "data_parallel_size must be an integer from 1 to 1024, got 1.5"),
        ({"tp": 4, "manager": "contiguous-max"}, "manager must be 'paged' with several ranks or"),
        ({"node": "4xa100"}, "hardware must be one of 'laptop', .* or a Hardware or a Node"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(options, message):
    with pytest.raises(ValueError, match=message):
        run(prompts(1, 4, 2), **options)


def test_without_a_trace_there_is_none():
    with pytest.raises(ValueError, match=r"asked for with simulate\(\.\.\., trace=True\)"):
        _ = run(prompts(1, 4, 2), tp=4).trace


def test_the_command_has_vllms_flags():
    done = CliRunner().invoke(
        app,
        ["run", "--workload", "alpaca", "--requests", "5", "--rate", "inf", "--hardware", "8xh100",
         "--model", "llama-2-70b", "-tp", "4", "-pp", "2", "-dp", "2", "--json"],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    first, *_, last = done.stdout.splitlines()
    assert first == "alpaca on llama-2-70b, 8xh100, paged, fcfs, TP 4, PP 2, DP 2"
    expected = as_dict(run(alpaca_like(5), "8xh100", tp=4, pp=2, dp=2))
    numbers = json.loads(last)
    del expected["wall_seconds"], numbers["wall_seconds"]
    assert numbers == expected
