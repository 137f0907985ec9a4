"""Figures of a run with plans in flight: two lanes, dotted tokens, and those that are wasted."""

import dataclasses
from functools import cache
from itertools import pairwise

import pytest
from test_20_figures import exchanged, staged
from test_viz_figures import chunked, preempting
from traced_runs import crowded, in_flight, overlapped

from minivllm import LLM, SamplingParams
from minivllm.lab.viz.model.flights import read_flights
from minivllm.lab.viz.model.frames import frames
from minivllm.lab.viz.model.overlap_model import read_overlap
from minivllm.lab.viz.model.timeline_model import read_history
from minivllm.trace.records import Preempted, RankWorked, Sampled, StepEnded, TokensWasted
from minivllm.viz import block_grid, block_table, overlap_lanes, pipeline_grid, save_html, timeline


@cache
def waiting():
    """The run of ``overlapped`` with one plan at a time."""
    return in_flight(1, [6, 4], [6, 9], stops={1: 4})


@cache
def measured():
    """The embedded model in a thread of its own, by seconds."""
    llm = LLM(trace=True, async_scheduling=True, max_model_len=64, num_gpu_blocks_override=20)
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    llm.generate([{"prompt_token_ids": [5, 6, 7]}], params, use_tqdm=False)
    llm.llm_engine.shutdown()
    return llm.trace


def whole(trace, clock="steps"):
    return read_overlap(trace, 0, trace.num_steps - 1, clock)


def rows_of(text):
    """Rows of a lane figure by their names, run by run."""
    names = ("CPU ", "device ", "A ", "B ", "C ", "D ", "rank ")
    return [line for line in text.splitlines() if line.startswith(names)]


# -- lanes ---------------------------------------------------------------------------------------


def test_the_lanes_of_the_same_run_waiting_and_overlapped():
    """The pictures that notebook 05 draws, unit by unit."""
    figure = overlap_lanes({"waits": waiting(), "overlapped": overlapped()})
    assert rows_of(figure.text) == [
        "CPU      p░░░░utp░░░░utp░░░░utp░░░░utp░░░░utp░░░░utput",
        "device   ░0000░░░1111░░░2222░░░3333░░░4444░░░5555░░░░░",
        "A         ····•  ····•  ····•  ····•  ····•  ····•",
        "B         ····•  ····•  ····•  ····•",
        "CPU      pp░░░utp░utp░utp░utp░utp░utputut",
        "device   ░000011112222333344445555░░░░░░░",
        "A         ····•···•···•···•···•···•",
        "B         ····•···•···•···•···/",
    ]
    told = figure.alt
    assert "waits: 0 of 5 plans made while the one before was computed; device idle 38%." in told
    assert "overlapped: 5 of 5 plans made while the one before was computed, 1 token wasted" in told


@pytest.mark.parametrize("make", [overlapped, crowded, chunked, preempting, staged])
def test_lanes_by_steps_are_those_of_any_machine(make):
    """Times of the records do not come into them, and no device does two things at once."""
    trace = make()
    model = whole(trace)
    other = make()
    other.records = [
        dataclasses.replace(r, time=7.5 * r.time + 1) if hasattr(r, "time") else r
        for r in trace.records
    ]
    assert whole(other) == model
    for lane in (model.cpu, *model.devices.values()):
        for before, after in pairwise(lane):
            assert before.end <= after.start
    made = {part.plan: part.end for part in model.cpu if part.kind == "plan"}
    updated = {part.plan: part.start for part in model.cpu if part.kind == "update"}
    for lane in model.devices.values():
        for part in lane:
            assert made[part.plan] <= part.start
            assert part.end <= updated[part.plan]


@pytest.mark.parametrize("make", [overlapped, crowded, waiting, preempting, staged])
def test_every_token_of_the_records_is_in_the_lanes_once(make):
    trace = make()
    tokens = whole(trace).tokens
    wasted = sum(record.num_tokens for record in trace.of(TokensWasted))
    assert sum(token.is_wasted for token in tokens) == wasted
    assert len(tokens) == wasted + len(list(trace.of(Sampled)))
    flights = read_flights(trace)
    for token in tokens:
        assert token.known is not None
        assert token.start < token.known
        assert token.plan in flights


def test_plans_that_a_failure_gives_up_are_crossed_out():
    trace = in_flight(2, [4], [9])
    (cut,) = [i for i, r in enumerate(trace.records) if isinstance(r, StepEnded) and r.step == 2]
    del trace.records[cut + 1 :]
    trace.step = 2
    trace.start_step()
    trace.fail_step(["req-0"])
    tokens = whole(trace).tokens
    assert [(t.plan, t.is_wasted, t.known is None) for t in tokens] == [
        (0, False, False), (1, False, False), (2, True, True),
    ]  # fmt: skip


def test_stages_have_a_lane_for_each_rank():
    figure = overlap_lanes({"run": exchanged()})
    cpu, *ranks = rows_of(figure.text)[:5]
    assert [row[:6] for row in ranks] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    lanes = [row[9:] for row in ranks]
    assert lanes[0] == lanes[1] != lanes[2] == lanes[3]
    assert lanes[0].index("0") + 4 == lanes[2].index("0"), "stage 1 begins when stage 0 is done"
    assert cpu.index("u") - 9 == lanes[2].rindex("0") + 1


def test_lanes_by_seconds_are_what_the_records_say():
    trace = measured()
    model = whole(trace, "seconds")
    work = {r.plan: r.end - r.start for r in trace.of(RankWorked)}
    (lane,) = model.devices.values()
    assert {p.plan: p.end - p.start for p in lane} == pytest.approx(work)
    assert {part.kind for part in model.cpu} >= {"plan", "update", "text"}
    for before, after in pairwise(model.cpu):
        assert before.end == pytest.approx(after.start) or before.end < after.start
    text = overlap_lanes({"run": trace}, clock="seconds").text
    assert "plans made while the one before was computed" in text
    assert "p CPU" not in text, "columns would be of units"


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: overlap_lanes({}), "runs must be at least one"),
        (lambda: overlap_lanes({"a": overlapped()}, clock="days"), "clock must be 'steps' or 'sec"),
        (lambda: overlap_lanes({"a": overlapped()}, clock="seconds"), "clock must be 'steps' for"),
        (lambda: overlap_lanes({"a": overlapped()}, first=3, last=2), "first and last must be ca"),
        (lambda: overlap_lanes({"a": overlapped()}, first=99), "first and last must be calls of"),
        (lambda: overlap_lanes({"a": in_flight(2, [4], [50])}), "last must be a call nearer"),
        (lambda: overlap_lanes({"a": in_flight(2, [1] * 13, [1] * 13)}), "of at most 12 sequences"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_refused(call, named):
    with pytest.raises(ValueError, match=named):
        call()


def test_a_part_of_a_run_begins_at_its_first_call():
    """With the plan in flight that an earlier call has made."""
    model = read_overlap(overlapped(), 2, 3, "steps")
    assert [(p.kind, p.plan) for p in model.cpu if p.kind in ("plan", "update")] == [
        ("plan", 2), ("update", 1), ("plan", 3), ("update", 2),
    ]  # fmt: skip
    assert model.cpu[0].start == 0
    assert [part.plan for part in model.devices[0]] == [1, 2, 3]
    assert {token.plan for token in model.tokens} == {1, 2, 3}


# -- the others ----------------------------------------------------------------------------------


def test_the_timeline_dots_what_is_not_known_and_crosses_out_what_is_wasted():
    figure = timeline(overlapped())
    lines = [line.split() for line in figure.text.splitlines()]
    rows = {line[0]: line[1:] for line in lines if line[:1] in (["A"], ["B"])}
    assert rows["A"][:6] == ["req-0", "6", "◌", "◌", "◌", "◌"]
    assert rows["B"] == ["req-1", "4", "◌", "◌", "◌", "/|"]
    assert "1 token wasted" in figure.alt
    assert figure.svg.count("planned before its token was known</title>") == 9
    assert figure.svg.count("came after its end: wasted</title>") == 1
    assert "◌" not in timeline(waiting()).text
    assert "wasted" not in timeline(waiting()).svg


def test_cells_are_placeholders_if_their_token_came_later():
    trace = crowded()
    history = read_history(trace)
    assert len(list(trace.of(Preempted))) > 0
    known = {}  # sequence -> step after which its last token is known
    for step in range(trace.num_steps):
        for seq_id, cells in history.rows.items():
            cell = cells.get(step)
            if cell is not None and cell.kind == "decode":
                tokens = trace.state_at(step, "schedule").sequences[seq_id].token_ids
                known.setdefault(cell.start >= len(tokens), []).append(cell.is_placeholder)
    assert all(known[True])
    assert not any(known.get(False, []))
    assert history.counts["wasted"] == sum(r.num_tokens for r in trace.of(TokensWasted)) > 0


def test_words_say_which_plan_ended_and_what_was_wasted():
    told = [frame.words for frame in frames(overlapped())]
    assert told[0].endswith(" No plan has ended.")
    assert told[1].startswith("A and B decode behind a token on its way")
    assert told[1].endswith(" The plan of step 0 has ended.")
    assert "B finishes (stop)" in told[4]
    assert told[5].endswith(
        "The plan of step 4 has ended. 1 token of B came after its end: wasted."
    )
    assert not any("plan of step" in frame.words for frame in frames(waiting()))
    assert any("The device has computed it." in frame.words for frame in frames(measured()))


@pytest.mark.parametrize("make", [overlapped, crowded, lambda: in_flight(3, [6, 4], [6, 9])])
def test_slots_in_flight_are_those_of_earlier_plans(make):
    trace = make()
    for frame in frames(trace):
        state = trace.state_at(frame.step, "schedule")
        for row in frame.rows:
            seq = state.sequences[row.owner.seq_id]
            now = sum(number for step, number in seq.in_flight if step == frame.step)
            assert row.num_scheduled == now
            assert row.num_in_flight == seq.num_scheduled_tokens - now
            assert row.num_computed == seq.num_computed_tokens


def test_blocks_show_tokens_on_their_way():
    table = block_table(overlapped(), 2).text
    assert "A req-0: 6 computed +1 in flight +1 now" in table
    assert "+◌" in table
    assert "~ in flight  ◌ token not known yet" in table
    grid = block_grid(overlapped(), 2)
    assert "2 A ■■~+" in grid.text
    assert "2 written by this step · 2 in flight" in grid.text
    assert "in flight" not in block_grid(waiting(), 2).text
    assert "a token on its way, written" in grid.svg


def test_the_page_says_what_was_wasted(tmp_path):
    save_html(overlapped(), tmp_path / "run.html")
    assert "tokens wasted after an end" in (tmp_path / "run.html").read_text(encoding="utf-8")
    save_html(waiting(), tmp_path / "run.html")
    assert "tokens wasted" not in (tmp_path / "run.html").read_text(encoding="utf-8")


def test_asynchronous_plans_are_no_stages():
    assert "1 stage " in pipeline_grid(overlapped()).text
    assert "4 stages " in pipeline_grid(staged()).text
