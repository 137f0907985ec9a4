"""A run read as it goes: it shows what the whole trace would, and remembers what it shows."""

import json
import random
from copy import deepcopy

import pytest
import traced_runs
from traced_runs import traced_run

from minivllm import LLM, BeamSearchParams, SamplingParams
from minivllm.lab.viz.draw.palette import owners_of
from minivllm.lab.viz.model.frames import frames
from minivllm.lab.viz.model.live import NUM_STEPS, LiveRun
from minivllm.lab.viz.model.timeline_model import TimelineWindow, read_history
from minivllm.lab.viz.page.live import MAX_DRAWN, picture
from minivllm.trace import Trace
from minivllm.trace.records import Finished, StepEnded, TokensWasted

ALIVE = {"waiting", "running", "preempted", "swapped"}


def live_run(trace, **more):
    return LiveRun(trace.num_blocks, trace.block_size, trace.max_num_batched_tokens, **more)


def turns(trace, rng, most=3):
    """The records as an engine hands them on: some steps, and now and then what is between two."""
    start, left = 0, rng.randint(1, most)
    for index, record in enumerate(trace.records, 1):
        left -= isinstance(record, StepEnded)
        if left == 0 or index == len(trace.records):
            yield trace.records[start:index]
            start, left = index, rng.randint(1, most)


def begun(trace, num_records):
    """The trace as it was after this many records."""
    part = Trace(trace.num_blocks, trace.block_size, trace.max_num_batched_tokens)
    part.records = trace.records[:num_records]
    part.step = part.records[-1].step
    return part


@pytest.fixture
def everything(tiny_qwen2):
    """Samples, beams, a swap, cached blocks, and one who leaves."""
    llm = LLM(str(tiny_qwen2), skip_tokenizer_init=True, trace=True, block_size=4, max_model_len=64,
              num_gpu_blocks_override=24, max_num_seqs=6, max_num_batched_tokens=24,
              preemption_mode="swap")  # fmt: skip
    engine, same = llm.llm_engine, list(range(9))
    drawn = SamplingParams(max_tokens=20, ignore_eos=True, n=3, seed=1)
    for i in range(3):
        engine.add_request(f"n{i}", {"prompt_token_ids": [*same, i]}, drawn)
    beams = BeamSearchParams(beam_width=2, max_tokens=8, ignore_eos=True)
    engine.add_request("beams", {"prompt_token_ids": same}, beams)
    while engine.has_unfinished_requests():
        engine.step()
        if engine.trace.step == 7:
            engine.abort_request("n1")
    return engine.trace


WORLDS = ["chunked", "preempting", "sampled", "cached", "overlapped", "crowded", "everything"]


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 4])
@pytest.mark.parametrize("world", WORLDS)
def test_it_shows_what_the_whole_trace_would(world, most, request):
    if world == "everything":
        trace = request.getfixturevalue(world)
    else:
        trace = getattr(traced_runs, world)()
    run, num_records = live_run(trace), 0
    for records in turns(trace, random.Random(most), most):
        run.update(records)
        num_records += len(records)
        part = begun(trace, num_records)
        state, frame = part.state_at(part.step), run.frame()
        for record in part.records[part.records.index(part.at(part.step)[-1]) + 1 :]:
            state.apply(record)
        assert frame.running == tuple(state.running)
        assert frame.waiting == tuple(state.waiting)
        assert frame.swapped == tuple(state.swapped)
        assert frame.cached == state.cached
        assert frame.ref_counts == state.ref_counts
        rows = {row.owner.seq_id: row for row in frame.rows}
        assert rows.keys() == {s for s, seq in state.sequences.items() if seq.block_ids}
        for seq_id, row in rows.items():
            seq = state.sequences[seq_id]
            if seq.in_flight:
                assert row.num_computed == seq.num_computed_tokens
                assert row.num_in_flight + row.num_scheduled == seq.num_scheduled_tokens
            else:
                assert row.num_computed + row.num_scheduled == seq.num_computed_tokens
            assert row.num_tokens == len(seq.token_ids)
        *_, told = frames(part)
        assert (frame.plan, frame.result) == (told.plan, told.result)
        letters = {s: owner.letter for s, owner in owners_of(part).items()}
        assert {s: owner.letter for s, owner in run.owners.items()}.items() <= letters.items()
        first = max(0, part.step - NUM_STEPS + 1)
        assert run.window() == TimelineWindow.of(read_history(part), first, part.step)
    assert run.step == trace.num_steps - 1


def test_before_the_first_step():
    trace = traced_runs.chunked()
    run = live_run(trace)
    shown = picture(run)
    assert shown["timeline"] is None
    assert shown["frame"]["words"] == ["", "No step yet.", ""]
    run.update(trace.records[:1])  # a request has come, and waits
    shown = picture(run)
    assert shown["numbers"]["waiting"] == 1
    assert shown["run"]["owners"][0]["letter"] == "A"


def test_what_nobody_sees_any_more_is_forgotten():
    rng = random.Random(3)
    trace = traced_run(
        [rng.randrange(3, 20) for _ in range(400)], [rng.randrange(2, 9) for _ in range(400)],
        num_blocks=60, arrivals=sorted(rng.randrange(900) for _ in range(400)),
    )  # fmt: skip
    assert trace.num_steps > 10 * NUM_STEPS
    run, most = live_run(trace), 0
    for records in turns(trace, rng):
        run.update(records)
        most = max(most, len(run.state.sequences), len(run.owners), len(run._history.rows))
        assert len(run._history.steps) <= NUM_STEPS + 3
    assert 10 < most < 150
    assert run.owners  # and the letters of the last ones go on where the others' ended
    assert {len(owner.letter) for owner in run.owners.values()} == {2}


def test_of_a_large_pool_the_lines_are_drawn_that_somebody_needs():
    trace = traced_run([30, 30], [20, 20], num_blocks=5000)
    for record in trace.records:  # the same, far behind
        if hasattr(record, "block_ids"):
            object.__setattr__(record, "block_ids", tuple(b + 3000 for b in record.block_ids))
    run = live_run(trace)
    for records in turns(trace, random.Random(0)):
        run.update(records)
        shown = picture(run)
        drawn = shown["run"]["drawn"]
        assert len(drawn) == shown["run"]["numDrawn"] <= MAX_DRAWN
        assert set(run.frame().ref_counts) <= set(drawn)
        assert len(json.dumps(shown)) < 40_000


def test_what_is_forgotten_of_a_trace_changes_nothing_of_the_rest(everything):
    """Step after step is forgotten; the others' states are those of the whole trace."""
    trace = deepcopy(everything)
    last = trace.num_steps - 1
    for first in range(1, last + 1, 3):
        trace.forget_before(first)
        trace.forget_before(first - 1)  # again does nothing
        assert trace.first_step == first
        assert trace.state_at(first - 1) == trace.beginning()
        for step in (first, (first + last) // 2, last):
            for after in ("schedule", "update"):
                state = trace.state_at(step, after)
                whole = everything.state_at(step, after)
                over = whole.sequences.keys() - state.sequences.keys()
                assert all(whole.sequences[seq_id].status not in ALIVE for seq_id in over)
                for seq_id in over:
                    del whole.sequences[seq_id]
                assert state == whole
        for step in (first - 2, last + 1):
            with pytest.raises(ValueError, match=f"step must be between {first - 1} and {last}"):
                trace.state_at(step)
    with pytest.raises(ValueError, match="step must be at most"):
        trace.forget_before(last + 1)
    trace.clear()
    assert trace.first_step == 0


def test_a_page_that_is_opened_while_a_token_is_on_its_way_to_nobody():
    """Its sequence has ended, and is not in the state with which the page begins."""
    trace = traced_runs.overlapped()
    ended = next(r.step for r in trace.of(Finished))
    part = deepcopy(trace)
    part.forget_before(ended + 1)
    assert any(part.of(TokensWasted))
    run = live_run(trace)
    run.begin(part.beginning())
    run.update(part.records)
    assert run.step == trace.num_steps - 1
    assert all(frame.words for frame in frames(part))
    assert picture(run)["timeline"]
