"""Figures of speculation: what they show is what the trace and the arithmetic say."""

import json

import pytest
from test_viz_figures import SVG, check_figure, drawing, texts

from minivllm.config import SchedulerConfig
from minivllm.kv.manager import KVCacheManager
from minivllm.lab.sim.drafting import fake_drafts
from minivllm.lab.sim.loop import run_step
from minivllm.lab.viz.blocks.snapshot import take_snapshot
from minivllm.lab.viz.model.draft_model import read_draft_lanes
from minivllm.lab.viz.model.frames import frames
from minivllm.lab.viz.model.timeline_model import read_history
from minivllm.request import Request
from minivllm.sampling_params import SamplingParams
from minivllm.scheduling.scheduler import Scheduler
from minivllm.trace import Trace
from minivllm.trace.records import Sampled, Verified
from minivllm.viz import (
    block_grid,
    draft_lanes,
    filmstrip,
    ngram_lookup,
    rejection_bars,
    save_chrome_trace,
    save_html,
    speedups,
    timeline,
)


def speculating(k=3, accept="mixed", max_tokens=14, seed=0):
    """Two sequences with made-up drafts, one of which comes later."""
    trace = Trace(20, 4, 64)
    manager = KVCacheManager(20, 4, True, 0, trace)
    limits = SchedulerConfig(64, 4, 64, num_speculative_tokens=k)
    scheduler = Scheduler(limits, manager, trace)
    config = {
        "method": "draft_model", "num_speculative_tokens": k, "accept": accept, "draft_seed": seed,
    }  # fmt: skip
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    coming = [Request("x", [7] * 6, params), Request("y", [8] * 3, params)]
    while coming or scheduler.has_unfinished_requests():
        if coming:
            scheduler.add_request(coming.pop(0))
        updated = run_step(scheduler).updated
        scheduler.update_draft_token_ids(
            {s.seq_id: fake_drafts(s.token_ids, config, 64) for s in updated if trace.step % 5 > 0}
        )
    return trace


def test_a_step_with_drafts_is_no_prefill():
    trace = speculating()
    history = read_history(trace)
    gained = {}
    for record in trace.of(Sampled):
        gained.setdefault((record.seq_id, record.step), []).append(record.token_id)
    verified = {(r.seq_id, r.step): r for r in trace.of(Verified)}
    assert len(verified) > 5
    for seq_id, row in history.rows.items():
        for step, cell in row.items():
            found = verified.get((seq_id, step))
            assert (cell.kind == "verify") == (found is not None)
            if found:
                assert cell.num_tokens == 1 + len(found.draft_token_ids)
                assert cell.num_accepted == found.num_accepted
    figure = timeline(trace)
    check_figure(figure, timeline(trace))
    drafted = sum(len(r.draft_token_ids) for r in verified.values())
    accepted = sum(r.num_accepted for r in verified.values())
    assert f"{accepted} of {drafted} drafts accepted" in figure.alt
    first = min(step for _, step in verified)
    in_step = [r for (_, step), r in verified.items() if step == first]
    share = f"{sum(r.num_accepted for r in in_step)}/{sum(len(r.draft_token_ids) for r in in_step)}"
    assert share in texts(figure)
    assert share in figure.text.splitlines()[-3]
    assert f"+{1 + in_step[0].num_accepted}" in texts(figure)
    assert "drafts" not in timeline(speculating(accept="none"), 0, 0).text


def test_where_a_share_is_too_wide_the_accepted_are_told():
    trace = speculating(k=6, accept="all", max_tokens=30)
    steps = read_history(trace).steps
    widest = [s.num_accepted for s in steps.values() if s.num_drafts == 12 and s.num_accepted == 12]
    assert widest
    found = texts(timeline(trace))
    assert "12/12" not in found
    assert found.count("12") >= len(widest)


def test_many_steps_with_drafts_are_told_in_few_characters():
    trace = speculating(k=1, accept="none", max_tokens=52)
    figure = timeline(trace)
    check_figure(figure, timeline(trace))
    assert f"0 of {sum(1 for _ in trace.of(Verified))} drafts accepted" in figure.text


def test_other_views_of_drafts(tmp_path):
    trace = speculating()
    for draw in (filmstrip, block_grid):
        check_figure(draw(trace), draw(trace))
    for record in trace.of(Verified):
        snapshot = take_snapshot(trace, record.step, "schedule")
        (table,) = [t for t in snapshot.tables if t.seq.seq_id == record.seq_id]
        slots = [slot for block in table.blocks for slot in block.slots]
        written = [slot.token for slot in slots if slot.state == "written"]
        assert tuple(written[1:]) == record.draft_token_ids
    verified = next(r for r in trace.records if isinstance(r, Verified))
    cut = trace.records.index(verified)
    del trace.records[cut:]  # as a reader sees it who looks while the model computes
    assert "a draft, written" in block_grid(trace, verified.step, "schedule").svg
    trace = speculating()
    save_html(trace, tmp_path / "run.html")
    assert "A 1+3" in filmstrip(trace, range(trace.num_steps)).text
    told = [frame.plan for frame in frames(trace)]
    assert any("A decodes with 3 drafts" in plan for plan in told)
    assert not any("again" in plan for plan in told)
    save_chrome_trace(trace, tmp_path / "run.json", clock="steps")
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    chunks = [e for e in events if e["name"] == "decode with 3 drafts"]
    kept = [r.num_accepted for r in trace.of(Verified) if len(r.draft_token_ids) == 3]
    assert sorted(e["args"]["accepted"] for e in chunks) == sorted(kept)


@pytest.mark.parametrize("accept", ["mixed", "all", "none"])
def test_lanes_are_the_steps_of_the_trace(accept):
    trace = speculating(accept=accept)
    model = read_draft_lanes(trace, "y")
    tokens = [r.token_id for r in trace.of(Sampled) if r.seq_id == "y"]
    assert [token for lane in model.lanes for token in lane.sampled] == tokens
    position = 2  # of the last prompt token
    for lane in model.lanes:
        assert lane.position == position
        assert lane.token == (8 if position == 2 else tokens[position - 3])
        position += len(lane.sampled)
        right = [d == t for d, t in zip(lane.drafts, lane.sampled, strict=False)]
        assert all(right[: lane.num_accepted])
        # at max_tokens the engine drops what it has drawn beyond them
        ended = position == 2 + len(tokens)
        assert len(lane.sampled) == lane.num_accepted + 1 or ended
    assert model.num_right == lane.position + 1 + lane.num_accepted
    rejected = sum(len(lane.drafts) - lane.num_accepted for lane in model.lanes)
    assert sum(model.num_writes.values()) == model.num_right + rejected
    figure = draft_lanes(trace, "y")
    check_figure(figure, draft_lanes(trace, "y"))
    assert ("draft rejected" in texts(figure)) == (accept != "all")
    assert figure.text.count("✗") == rejected


def test_lanes_can_be_cut_and_named_and_wrong_ones_are_refused():
    trace = speculating()
    figure = draft_lanes(trace, "x", 1, 3, decode=lambda token: f"<{token}>")
    assert "Draft lanes of A, steps 1–3" in texts(figure)
    assert figure.text.splitlines()[3].startswith("step   1  <")
    with pytest.raises(ValueError, match="seq_id must be one of x, y"):
        draft_lanes(trace, "z")
    with pytest.raises(ValueError, match="first and last, from 0 to"):
        draft_lanes(trace, "x", 3, 2)
    with pytest.raises(ValueError, match="some in which 'y' draws"):
        draft_lanes(trace, "y", 0, 0)
    with pytest.raises(ValueError, match="at least one step"):
        draft_lanes(Trace(4, 4, 8))
    with pytest.raises(ValueError, match="last must be a step up to which 32 positions"):
        draft_lanes(speculating(max_tokens=50), "x")


def test_a_lookup_shows_the_rule():
    tokens = [9, 1, 2, 71, 3, 1, 2, 80, 3, 1, 2]
    figure = ngram_lookup(tokens, 1, 3, 2)
    check_figure(figure, ngram_lookup(tokens, 1, 3, 2))
    assert figure.text.splitlines()[1:] == [
        "3 tokens match, the draft is 80 3", "",
        "last 3: 3 1 2 | at position 4, then 80 3  <- the draft",
        "last 2: 1 2 | at position 1, then 71 3",
        "last 1: 2 | at position 2, then 71 3",
    ]  # fmt: skip
    assert "1 token matches, the draft is 71" in ngram_lookup(tokens, 1, 1, 1).text
    nothing = ngram_lookup([1, 2, 3], 1, 2, 4)
    check_figure(nothing, nothing)
    assert texts(nothing).count("not found before") == 2
    check_figure(ngram_lookup([1], 1, 3, 4), ngram_lookup([1], 1, 3, 4))


def test_bars_share_what_both_distributions_have():
    target, draft = {"A": 0.4, "B": 0.3, "C": 0.3}, {"A": 0.7, "B": 0.1, "C": 0.2}
    figure = rejection_bars(target, draft)
    check_figure(figure, rejection_bars(target, draft))
    assert "accepted 70% · drawn again 30%" in figure.alt
    widths = [
        float(e.get("width")) for e in drawing(figure).iter(f"{SVG}rect")
        if e.get("fill") == "#8fd3bf" and float(e.get("width")) > 30
    ]  # fmt: skip
    assert [round(width / sum(widths), 3) for width in widths] == [0.571, 0.143, 0.286]
    assert {"p 0.40", "q 0.70", "q 0.10", "p 0.30", "q 0.20"} <= set(texts(figure))
    with pytest.raises(ValueError, match="of the tokens"):
        rejection_bars(target, {"A": 1.0})
    with pytest.raises(ValueError, match="draft_probs must be probabilities that sum to 1"):
        rejection_bars(target, {**draft, "C": 0.3})


@pytest.mark.slow
def test_speedups_are_told_in_numbers():
    plot = speedups({"k = 1": {1: 1.5, 16: 0.9}, "k = 5": {1: 2.25, 16: 0.5}}, "batch", log=True)
    assert plot.text.splitlines() == [
        "batch        1     16", "k = 1     1.50   0.90", "k = 5     2.25   0.50",
    ]  # fmt: skip
    assert plot.alt.endswith("k = 5 2.25 at 1 and 0.50 at 16.")
    assert plot.png.startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="at least one"):
        speedups({}, "batch")
    with pytest.raises(ValueError, match="a number for each of"):
        speedups({"a": {1: 1.0}, "b": {2: 1.0}}, "batch")
