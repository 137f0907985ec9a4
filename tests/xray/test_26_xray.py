"""Recorded runs of a real vLLM: figures, report, verify and what-if."""

import asyncio
import gzip
import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from minivllm.cli import app
from minivllm.kv.manager import KVCacheManager
from minivllm.lab.sim.loop import fake_execute, run_steps
from minivllm.lab.sim.make import make_scheduler
from minivllm.request import Request
from minivllm.sampling_params import SamplingParams
from minivllm.trace import Trace
from minivllm.trace.records import (
    OWN_PLAN,
    Finished,
    Preempted,
    Sampled,
    Scheduled,
    StepEnded,
    StepPlanned,
    TokensWasted,
)
from minivllm.viz import block_grid, timeline
from minivllm.xray import load_xray, report, verify, what_if
from minivllm.xray.fit import fit_cost, non_negative_least_squares
from minivllm.xray.follow import follow
from minivllm.xray.format import XRay
from minivllm.xray.in_flight import ended_plans
from minivllm.xray.replay_settings import ends_of
from minivllm.xray.scenarios import parse_changes

ROOT = Path(__file__).parents[2]
WAITS = ROOT / "minivllm/xray/runs/waits.jsonl.gz"
RUNS = sorted([WAITS, *(ROOT / "tests/data/xray").rglob("*.jsonl.gz")])
# in "decisions" users do what no what-if knows of: they reset caches, and overtake each other
PLAIN = [p for p in RUNS if p.name != "drafts.jsonl.gz" and p.parent.name != "decisions"]
runs = pytest.mark.parametrize("path", RUNS, ids=lambda path: path.name.split(".")[0])
plain_runs = pytest.mark.parametrize("path", PLAIN, ids=lambda path: path.name.split(".")[0])


OVERLAPPED = ROOT / "tests/data/xray/overlapped.jsonl.gz"
RESETS = ROOT / "tests/data/xray/decisions/overlapped_resets.jsonl.gz"
ENDS = ends_of(load_xray(OVERLAPPED))  # tokens of each answer that was not aborted


@runs
def test_figures_draw_and_every_block_is_accounted_for(path):
    trace = load_xray(path).trace
    assert "svg" in timeline(trace).svg
    assert "svg" in block_grid(trace, trace.num_steps // 2).svg
    state = trace.beginning()
    for record in trace.records:
        state.apply(record)
        held = set(state.ref_counts)
        assert not held & set(state.free_queue)
        assert held | set(state.free_queue) == set(range(1, trace.num_blocks))


@runs
def test_our_scheduler_decides_what_vllm_decided(path):
    found = verify(load_xray(path))
    assert found, str(found)
    assert found.num_steps == load_xray(path).trace.num_steps


@pytest.mark.parametrize("name", ["tight", "waits"])
def test_runs_with_too_few_blocks_preempt(name):
    (path,) = [path for path in RUNS if path.name.startswith(name)]
    assert len(list(load_xray(path).trace.of(Preempted))) >= 4


def test_the_first_difference_shows_both_states():
    xray = load_xray(WAITS)
    xray.header["settings"]["max_num_batched_tokens"] -= 1
    found = verify(xray)
    assert not found
    assert f"equal up to step {found.difference.step}, which differs in Scheduled" in str(found)
    assert "vLLM after the step: running" in str(found)
    assert "here after the step: running" in str(found)
    assert found._repr_html_().count("<svg") == 2


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda xray: xray.header["settings"].update(
                async_scheduling=True, num_speculative_tokens=2
            ),
            "asynchronously with drafts",
        ),
        (lambda xray: setattr(xray.trace._beginning, "step", 6), "begins with step 7"),
    ],
)
def test_a_run_that_cannot_be_run_again_is_refused(change, sentence):
    xray = load_xray(WAITS)
    change(xray)
    for function in (verify, what_if):
        with pytest.raises(ValueError, match=sentence):
            function(xray)


def test_with_plans_in_flight_a_step_ends_the_plan_before():
    """Recorded by vLLM's own AsyncScheduler and its loop with two plans in flight."""
    trace = load_xray(OVERLAPPED).trace
    late = [r.step - r.plan for r in trace.of(StepEnded) if r.plan is not None]
    assert set(late) == {1}
    assert len(late) == trace.num_steps - 1
    wasted = list(trace.of(TokensWasted))
    stopped = {r.seq_id for r in trace.of(Finished) if r.reason == "stop"}
    assert stopped <= {r.seq_id for r in wasted}
    assert not {r.seq_id for r in trace.of(Finished) if r.reason == "length"} & {
        r.seq_id for r in wasted
    }
    assert len(wasted) == len({r.seq_id for r in wasted}), "one each"
    ours = verify(load_xray(OVERLAPPED)).our_trace
    assert [r.plan for r in ours.of(StepEnded)] == [r.plan for r in trace.of(StepEnded)]


@pytest.mark.parametrize("path", [OVERLAPPED, RESETS], ids=["engine", "resets"])
def test_a_file_that_does_not_say_whose_tokens_came_is_read_by_them(path):
    xray = load_xray(path)
    expected = ended_plans(xray.trace)
    xray.trace.records = [
        replace(r, plan=OWN_PLAN) if isinstance(r, StepEnded) else r for r in xray.trace.records
    ]
    if path is OVERLAPPED:  # elsewhere a reset throws tokens away, which no record says
        assert ended_plans(xray.trace) == expected
        assert verify(xray)
    first = next(i for i, r in enumerate(xray.trace.records) if isinstance(r, Sampled))
    step = xray.trace.records[first].step
    xray.trace.records.insert(first, Sampled(step, "nobody", 7))
    with pytest.raises(ValueError, match=f"in step {step} tokens come of no plan in flight"):
        ended_plans(xray.trace)


def test_a_stall_behind_a_token_that_came_late_is_the_preemptions():
    stalls = report(load_xray(OVERLAPPED)).walk.stalls
    longest = sorted(stalls, key=lambda stall: -stall.seconds)[:5]
    assert {stall.cause for stall in longest} <= {"preempted for blocks", "the step itself"}
    assert "preempted for blocks" in {stall.cause for stall in longest}


@pytest.mark.parametrize("plan", [10**6, 0, 30])
def test_a_plan_ends_behind_those_before_it(plan):
    xray = load_xray(OVERLAPPED)
    records = xray.trace.records
    place, end = next((i, r) for i, r in enumerate(records)
                      if isinstance(r, StepEnded) and r.step == 30)  # fmt: skip
    records[place] = replace(end, plan=plan)
    sentence = f"contradicts itself in step 30: the plan of step {plan} ends, and the oldest in"
    with pytest.raises(ValueError, match=sentence):
        verify(xray)


def planned_in_a_second(num_requests=3, device=2.0, pause=0.5, **limits):
    """A run of ours: a plan takes a second, the device two, and half a second lies between."""
    settings = {"max_num_batched_tokens": 64, "max_num_seqs": 8, "max_model_len": 512, **limits}
    clock = [0.0]
    trace = Trace(64, 4, 64, clock=lambda: clock[0])
    scheduler = make_scheduler(KVCacheManager(64, 4, False, trace=trace), trace, **settings)

    def execute(scheduler, plan):
        clock[0] += 1.0
        trace.records[-1] = StepPlanned(trace.step, clock[0])
        clock[0] += device
        return fake_execute(scheduler, plan)

    params = SamplingParams(max_tokens=40, ignore_eos=True)
    requests = [Request(str(i), [7 + i] * 9, params) for i in range(num_requests)]
    for _ in run_steps(scheduler, requests, execute):
        clock[0] += pause
    header = {"vllm_version": "ours", "model": "none", "num_blocks": 64, "block_size": 4,
              "settings": settings, "text": True}  # fmt: skip
    return XRay(header, trace, {})


@pytest.mark.parametrize(("device", "period"), [(2.0, 2.0), (0.25, 1.5)])
def test_what_if_plans_were_made_meanwhile(device, period):
    """The slower lane says when the next token comes: the device, or planning and the pause."""
    found = what_if(planned_in_a_second(device=device), {"async_scheduling": "true"})
    measured, same, other = found.cases
    assert measured.mean_itl == pytest.approx(1.5 + device)
    assert same.mean_itl == pytest.approx(1.5 + device, rel=0.01)
    assert other.mean_itl == pytest.approx(period, rel=0.02)
    assert "async_scheduling=true is a guess: of a step only planning counts as" in str(found)
    tokens = [Counter(r.seq_id for r in case.trace.of(Sampled)) for case in found.cases]
    assert tokens[0] == tokens[1] == tokens[2] == dict.fromkeys("012", 40)


def test_what_if_an_asynchronous_run_were_in_turn():
    found = what_if(load_xray(OVERLAPPED), *parse_changes(["async_scheduling=true,false"]))
    _, same, kept, changed = found.cases
    assert kept.mean_itl == same.mean_itl
    assert not kept.guess
    assert "of a step only planning counts" in changed.guess
    assert {r.plan for r in changed.trace.of(StepEnded)} == {OWN_PLAN}
    stops = sum(r.reason == "stop" for r in load_xray(OVERLAPPED).trace.of(Finished))
    assert len(list(same.trace.of(TokensWasted))) >= stops
    assert not list(changed.trace.of(TokensWasted))
    for case in (same, changed):
        ends = Counter(r.seq_id for r in case.trace.of(Sampled))
        assert {n: ends[n] for n in ENDS} == ENDS


def xray_of(prompts, num_blocks=64, **limits):
    """An X-ray of a run of our own scheduler, in which a step takes a second."""
    settings = {"max_num_batched_tokens": 64, "max_num_seqs": 8, "max_model_len": 512, **limits}
    clock = [0.0]
    trace = Trace(num_blocks, 4, settings["max_num_batched_tokens"], clock=lambda: clock[0])
    scheduler = make_scheduler(KVCacheManager(num_blocks, 4, False, trace=trace), trace, **settings)
    requests = [
        Request(str(i), [7] * n, SamplingParams(max_tokens=8, ignore_eos=True), arrival_time=t)
        for i, (t, n) in enumerate(prompts)
    ]
    for _ in run_steps(scheduler, requests):
        clock[0] += 1
    header = {"vllm_version": "ours", "model": "none", "num_blocks": num_blocks, "block_size": 4,
              "settings": settings, "text": True}  # fmt: skip
    return XRay(header, trace, {})


@pytest.mark.parametrize(
    ("xray", "cause"),
    [
        (lambda: xray_of([(0, 8)] * 4, max_num_seqs=2), "max_num_seqs"),
        (lambda: xray_of([(0, 32)] * 4, num_blocks=14), "blocks"),
        (lambda: xray_of([(0, 200), (0, 8), (0, 8)]), "a prompt of 200 tokens ahead"),
        (lambda: xray_of([(0, 16)] * 6, max_num_batched_tokens=40), "budget"),
    ],
    ids=["seqs", "blocks", "long prompt", "budget"],
)
def test_a_wait_has_the_cause_that_it_was_made_to_have(xray, cause):
    found = report(xray())
    assert found.steps_waited
    assert found.steps_waited.most_common(1)[0][0] == cause
    assert cause in str(found)


def test_a_stall_has_its_cause_and_a_preemption_its_price():
    found = report(xray_of([(0, 8), (3, 200)]))
    longest = {stall.cause for stall in found.walk.stalls if stall.seq_id == "0"}
    assert "a prompt of 200 tokens in the same step" in longest
    tight = report(xray_of([(0, 20)] * 3, num_blocks=18))
    assert any(stall.cause == "preempted for blocks" for stall in tight.walk.stalls)
    again = [r for r in tight.xray.trace.of(Scheduled) if r.kind == "resumed"]
    assert tight.walk.num_recomputed_tokens == sum(r.num_tokens - 1 for r in again) > 0


def test_the_report_of_a_real_run():
    found = str(report(load_xray(WAITS)))
    for words in ("steps waited, by cause: ", "a prompt of 494 tokens ahead", "max_num_seqs",
                  "preemptions: ", "slowest first tokens:", "▁", "█"):  # fmt: skip
        assert words in found


def test_least_squares_find_what_made_the_values_and_nothing_below_0():
    rows = [(1.0, float(i), float(i * i % 7), float(i * i % 5)) for i in range(40)]
    values = [3 + 0.5 * row[1] + 0.25 * row[2] for row in rows]
    assert non_negative_least_squares(rows, values) == pytest.approx([3, 0.5, 0.25, 0], abs=1e-6)
    falling = [10 - row[1] for row in rows[:10]]
    assert min(non_negative_least_squares(rows[:10], falling)) == 0


@plain_runs
def test_the_same_settings_give_back_what_was_measured(path):
    """Times of these runs, on a busy machine: the fit has a mean error of a tenth or more."""
    measured, simulated = what_if(load_xray(path)).cases
    assert simulated.tokens_per_second == pytest.approx(measured.tokens_per_second, rel=0.15)
    assert simulated.mean_ttft == pytest.approx(measured.mean_ttft, rel=0.15)
    assert simulated.num_preemptions == pytest.approx(measured.num_preemptions, abs=2)


def test_more_blocks_and_places_shorten_the_longest_waits():
    changes = parse_changes(["max_num_seqs=8", "num_blocks=x2"])
    found = what_if(load_xray(WAITS), *changes)
    measured, _, other = found.cases
    assert other.name == "max_num_seqs=8 num_blocks=x2"
    assert other.p99_ttft < measured.p99_ttft / 2
    assert other.num_preemptions == 0
    assert "svg" in found.timelines().svg
    lines = found.text(columns=80).split("\n\n")[0].splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[lines.index(other.name) + 1].split()[-1] == "0"
    assert f"\n{other.name}  " in found.text(columns=200)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["max_seqs=8"], "a setting must be one of .* got 'max_seqs'"),
        (["num_blocks=x"], "num_blocks must be an integer of at least 2"),
        (["num_blocks=1"], "num_blocks must be"),
        (["max_num_seqs=0"], "max_num_seqs must be"),
        (["policy=lifo"], "policy must be one of fcfs"),
        (["enable_prefix_caching=2"], "true or false"),
        (["num_blocks"], "NAME=VALUE"),
        (["num_blocks=3"], "could never run|can be admitted|holds|blocks"),
    ],
)
def test_a_bad_setting_is_one_sentence(words, sentence):
    with pytest.raises(ValueError, match=sentence):
        what_if(load_xray(WAITS), *parse_changes(words))


def test_cases_are_all_combinations():
    cases = parse_changes(["max_num_seqs=8,16", "policy=priority"])
    assert cases == [
        {"max_num_seqs": "8", "policy": "priority"}, {"max_num_seqs": "16", "policy": "priority"},
    ]  # fmt: skip


def test_a_fit_needs_steps():
    with pytest.raises(ValueError, match="at least 10 steps"):
        fit_cost(Trace(8, 4, 8))


def test_the_glass_page_shows_a_run_that_is_attached(tmp_path):
    httpx = pytest.importorskip("httpx")
    from minivllm.xray.file_run import AttachedRun, make_app

    path = tmp_path / "run.jsonl"
    path.write_bytes(gzip.decompress(WAITS.read_bytes()))

    async def main():
        run = AttachedRun(path)
        app = make_app(run)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            page = await client.get("/glass")
            paused = await client.post("/glass/pause")
        pictures = app.state.glass.watch()
        content = {}
        while content.get("frame", {}).get("step") != 304:
            event = await asyncio.wait_for(anext(pictures), 20)
            content = json.loads(event.removeprefix(b"data: "))
        app.state.glass.close()
        run.close()
        return page, paused

    page, paused = asyncio.run(main())
    assert (page.status_code, "vLLM 0.32.0" in page.text) == (200, True)
    assert (paused.status_code, "cannot be paused" in paused.text) == (409, True)


def test_a_file_that_grows_and_is_replaced_is_followed(tmp_path):
    lines = gzip.decompress(WAITS.read_bytes()).decode().splitlines(keepends=True)
    path, said = tmp_path / "run.jsonl", []
    path.write_text("".join(lines[:50]) + lines[50][:20])
    looks = iter(
        [
            lambda: path.write_text("".join(lines[:80])),  # the same file, longer
            lambda: os.replace(other, path),
            None,
        ]
    )
    other = tmp_path / "other"
    other.write_text("".join(lines[:120]))

    def go_on():
        look = next(looks)
        if look is not None:
            look()
        return look is not None

    follow(path, said.append, go_on)
    last = max(json.loads(line)["step"] for line in lines[1:120])
    assert said[-1].startswith(f"step {last}: ")
    assert " waiting, " in said[-1]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([str(WAITS)], 0, "steps waited, by cause"),
        ([str(WAITS), "--verify"], 0, "steps are equal"),
        ([str(WAITS), "--what-if", "num_blocks=x2"], 0, "num_blocks=x2"),
        ([str(WAITS), "num_blocks=x2"], 2, "given with --what-if"),
        ([str(ROOT / "README.md")], 2, "no line of an X-ray"),
        ([str(ROOT / "no such file")], 2, "No such file"),
    ],
)
def test_the_command(arguments, code, words):
    done = CliRunner().invoke(app, ["xray", *arguments])
    assert (done.exit_code, words in " ".join(done.output.split())) == (code, True), done.output


def test_the_command_writes_pages(tmp_path):
    done = CliRunner().invoke(app, ["xray", str(WAITS), "-o", str(tmp_path / "out")])
    assert done.exit_code == 0
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "out").iterdir()}
    assert sizes.keys() == {"xray.html", "timeline.svg", "perfetto.json"}
    assert min(sizes.values()) > 10_000
    blocked = tmp_path / "file"
    blocked.write_text("")
    done = CliRunner().invoke(app, ["xray", str(WAITS), "-o", str(blocked / "out")])
    assert done.exit_code == 2
