"""Figures: the same bytes every time, and nothing in them but what the trace says."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest
from test_viz_figures import TAGS
from traced_runs import cached, chunked, crowd, preempting, sampled, sharing, single, traced_run

from minivllm.lab.sim.cost import HARDWARE, MODELS, CostModel
from minivllm.lab.viz.blocks.snapshot import take_snapshot
from minivllm.lab.viz.draw.palette import letter, owners_of
from minivllm.lab.viz.draw.step_axis import LANE_HEIGHT
from minivllm.lab.viz.model.timeline_model import read_history
from minivllm.trace import Trace
from minivllm.trace.records import (
    BlockCopied,
    Preempted,
    RequestAdded,
    Sampled,
    Scheduled,
)
from minivllm.viz import block_grid, block_table, compare, timeline

SVG = "{http://www.w3.org/2000/svg}"


WORLDS = [chunked, preempting, single, crowd, sharing]


def figures_of(trace):
    middle = trace.num_steps // 2
    return [
        timeline(trace),
        timeline(trace, first=middle),
        block_grid(trace, middle),
        block_table(trace, middle),
        compare({"one": trace, "the middle": trace}, first=middle),
        timeline(trace, clock=CostModel(HARDWARE["laptop"], MODELS["embedded"])),
        block_grid(trace, after="update"),
        block_table(trace, middle, sequences=trace.request_ids[:2]),
        block_grid(trace, middle, decode=lambda token: f" t{token}"),
    ]


def drawing(figure):
    return ET.fromstring(figure.svg)


def texts(figure):
    elements = drawing(figure).iter(f"{SVG}text")
    return [element.text for element in elements if element.get("stroke") is None]  # no halos


def tooltips(figure):
    return [e.text for e in drawing(figure).iter(f"{SVG}title")][1:]  # the first names the figure


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_figures_are_stable_and_fit_for_github(world):
    for figure, again in zip(figures_of(world()), figures_of(world()), strict=True):
        assert (figure.svg, figure.text, figure.alt) == (again.svg, again.text, again.alt)
        root = drawing(figure)
        assert root.get("role") == "img"
        assert root.find(f"{SVG}desc").text == figure.alt
        tags = {element.tag.removeprefix(SVG) for element in root.iter()}
        assert tags <= TAGS
        assert float(root.get("width")) <= 960
        paper = root.find(f"{SVG}rect")
        assert paper.attrib == {"x": "0", "y": "0", "width": root.get("width"),
                                "height": root.get("height"), "fill": "#ffffff"}  # fmt: skip
        sizes = [float(e.get("font-size")) for e in root.iter() if e.get("font-size")]
        assert min(sizes) >= 11
        for line in figure.text.splitlines():
            assert len(line) <= 100
            assert line == line.rstrip()
        assert "\x1b" not in figure.text


def test_ids_come_from_the_content():
    def ids(figure):
        return {e.get("id") for e in drawing(figure).iter() if e.get("id")}

    one, other = timeline(preempting()), timeline(chunked())
    assert len(ids(one)) == len(ids(other)) == 1
    assert ids(one) != ids(other)
    (name,) = ids(one)
    assert set(re.findall(r"url\((.*?)\)", one.svg)) == {f"#{name}"}


@pytest.mark.parametrize("world", [chunked, preempting, single])
def test_timeline_tells_what_was_scheduled(world):
    trace = world()
    figure = timeline(trace)
    letters = {seq_id: owner.letter for seq_id, owner in owners_of(trace).items()}
    prompts = {r.request_id: len(r.prompt_token_ids) for r in trace.of(RequestAdded)}
    drawn = [text for text in tooltips(figure) if "token" in text]
    expected = []
    for r in trace.of(Scheduled):
        decode = r.samples and r.num_tokens == 1 and r.num_computed_tokens >= prompts[r.seq_id]
        kind = f"{'decode' if decode else 'prefill'} of {r.num_tokens} token"
        expected.append(f"{letters[r.seq_id]}, step {r.step}: {kind}")
    assert sorted(re.sub("s? from position.*", "", text) for text in drawn) == sorted(expected)
    num_preempted = len(list(trace.of(Preempted)))
    assert texts(figure).count("×") == num_preempted + (num_preempted > 0)  # one in the legend
    rows = figure.text.split("\n\n")[1]
    assert rows.count("×") == num_preempted
    assert rows.count("|") == len(trace.request_ids)


def test_timeline_numbers_add_up():
    trace = crowd()
    history = read_history(trace)
    assert history.num_computed == sum(r.num_tokens for r in trace.of(Scheduled))
    assert history.num_sampled == len(list(trace.of(Sampled)))
    assert history.counts["preempted"] == len(list(trace.of(Preempted))) > 0
    for step, use in list(history.steps.items())[::10]:
        state = trace.state_at(step, "schedule")
        assert use.num_blocks == len(state.ref_counts)
        assert use.num_tokens == state.num_scheduled_tokens
        kinds = {s: row[step].kind for s, row in history.rows.items() if step in row}
        assert [s for s, kind in kinds.items() if kind == "waiting"] == [
            s for s in history.rows if s in state.waiting
        ]
    rows = timeline(chunked()).text.splitlines()
    assert rows[-4].split() == ["tokens", *"8888321", "budget", "8"]
    assert rows[-3].split() == ["blocks", "2", "5", "6", "10", "10", "6", "2", "usable", "11"]


@pytest.mark.slow
@pytest.mark.parametrize("after", ["schedule", "update"])
@pytest.mark.parametrize("world", [chunked, preempting, single, sharing])
def test_grid_and_tables_tell_the_state(world, after):
    trace = world()
    for step in range(-1, trace.num_steps):
        state = trace.state_at(step, after)
        grid, table = block_grid(trace, step, after), block_table(trace, step, after)
        held, usable = len(state.ref_counts), trace.num_blocks - 1
        assert f"{held} of {usable} blocks held" in grid.text.splitlines()[1]
        assert f"{held} of {usable} blocks held" in grid.alt
        states = [text.rsplit(" ", 1)[1] for text in tooltips(grid)]
        assert len(states) == held * trace.block_size
        if held and world is not sharing:
            computed = [s for s in state.sequences.values() if s.block_ids]
            assert states.count("filled") == sum(s.num_computed_tokens for s in computed)
            assert states.count("written") == state.num_scheduled_tokens
        entries = [t for t in texts(table) if (t or "").startswith("slots ")]
        assert len(entries) == sum(len(s.block_ids) for s in state.sequences.values())
        for seq in state.sequences.values():
            if seq.block_ids:
                mine = f"{owners_of(trace)[seq.seq_id].letter} → "
                assert mine + ", ".join(map(str, seq.block_ids)) in table.alt


def test_every_slot_is_where_the_block_table_says():
    trace = preempting()
    for table in take_snapshot(trace, 30, "schedule").tables:
        for block in table.blocks:
            for slot in block.slots:
                logical, offset = divmod(slot.position, trace.block_size)
                assert slot.slot == table.seq.block_ids[logical] * trace.block_size + offset
                if slot.token is not None:
                    assert slot.token == table.seq.token_ids[slot.position]


def test_new_and_shared_blocks_are_marked():
    grid, table = block_grid(sharing()), block_table(sharing())
    assert "A B ×2" in texts(grid)
    assert "1 shared" in grid.alt
    assert texts(table).count("1 ×2") == 2
    assert "url(#hatch-" in grid.svg
    assert "url(#hatch-" in table.svg
    thick = [e for e in drawing(grid).iter(f"{SVG}rect") if e.get("stroke-width") == "2.5"]
    assert len(thick) == 3 + 1  # one in the legend
    assert "×2!" in grid.text


def test_token_texts_are_escaped():
    text = '<&"\x00\n'
    for function in (block_grid, block_table):
        figure = function(single(), 3, decode=lambda token: text)
        assert '<&"�↵' in texts(figure)
    assert '<&"�↵' in block_table(single(), 3, decode=lambda token: text).text


def test_large_pools_leave_out_what_was_never_used():
    trace = traced_run([5], [8], num_blocks=5000)
    figure = block_grid(trace)
    assert "4980 more blocks never used, not drawn." in texts(figure)
    assert "4980 more blocks never used, not drawn." in figure.text
    assert "of 4999 blocks held" in figure.alt


def test_a_crowd_stays_small():
    trace = crowd()
    figure = timeline(trace)
    assert len(figure.svg) < 150_000
    assert all(f"{letter(i)} req-{i}" in figure.text for i in range(64))


def test_whoever_runs_but_is_left_out_of_a_step_is_idle():
    trace = sharing()
    trace.start_step()
    trace.record(Scheduled, "x", "running", 6, 1, True)
    trace.plan_step()
    trace.end_step()
    figure = timeline(trace)
    assert "A, step 1: decode of 1 token from position 6" in tooltips(figure)
    assert "B, step 1: idle" in tooltips(figure)
    assert "running, but not in this step" in texts(figure)
    assert "running, but not in this step" in figure.text


def test_letters():
    assert [letter(i) for i in (0, 25, 26, 51, 52, 701, 702)] == [
        "A", "Z", "AA", "AZ", "BA", "ZZ", "AAA",
    ]  # fmt: skip


def test_one_figure_many_views(tmp_path):
    figure = block_grid(single())
    data, metadata = figure._repr_mimebundle_()
    assert data == {"image/svg+xml": figure.svg, "text/plain": figure.text}
    assert metadata == {"image/svg+xml": {"alt": figure.alt}}
    assert str(figure) == repr(figure) == figure.text
    figure.save(tmp_path / "grid.svg")
    assert (tmp_path / "grid.svg").read_text(encoding="utf-8") == figure.svg


def test_bad_input_is_refused():
    trace, empty = single(), Trace(8, 4, 64)
    for function in (timeline, block_grid, block_table):
        with pytest.raises(ValueError, match="at least one step"):
            function(empty)
    for function in (block_grid, block_table):
        with pytest.raises(ValueError, match="step must be between -1 and 7"):
            function(trace, 8)
        with pytest.raises(ValueError, match="after must be"):
            function(trace, 0, after="lunch")
    with pytest.raises(ValueError, match="step 7, after schedule: no sequence 'req-9'"):
        block_table(trace, sequences=["req-9"])
    with pytest.raises(ValueError, match="first must be between 0 and 7"):
        timeline(trace, first=8)
    with pytest.raises(ValueError, match="last must be between first and 7"):
        timeline(trace, first=3, last=2)


def test_pure_python():
    code = (
        "import sys, minivllm.viz\n"
        "heavy = {'torch', 'numpy', 'IPython', 'matplotlib', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_blocks_that_are_free_but_cached_are_dotted():
    trace = cached()
    grid = block_grid(trace, 1)
    state = trace.state_at(1, "schedule")
    free = state.cached - state.ref_counts.keys()
    assert free == {2}
    dotted = [e for e in drawing(grid).iter(f"{SVG}rect") if e.get("stroke-dasharray")]
    assert len(dotted) == len(free) + 1  # one in the legend
    assert " 2 ∘A 9th" in grid.text  # it was A's second block
    assert list(state.free_queue).index(2) == 8
    pale = [e for e in drawing(grid).iter(f"{SVG}rect") if e.get("opacity")]
    assert len(pale) == 4  # what it holds
    assert "free, but cached" in grid.text


def test_samples_of_one_request_stand_together_under_its_letter():
    trace = sampled()
    assert [owner.letter for owner in owners_of(trace).values()] == ["A", "A1", "A2", "B"]
    rows = [
        line.split()[0] for line in timeline(trace).text.splitlines() if line and line[0] in "AB"
    ]
    assert rows == ["A", "A1", "A2", "B"]
    table = block_table(trace, 1)
    copied = {(r.seq_id, r.dst_block_id) for r in trace.of(BlockCopied)}
    assert len(copied) == 2
    assert "×3" in block_grid(trace, 0, after="update").text
    thick = [e for e in drawing(table).iter(f"{SVG}rect") if e.get("stroke-width") == "2.5"]
    assert len(thick) >= len(copied)


# -- one scale, and a clock ------------------------------------------------------------------------


def test_timelines_are_compared_by_one_scale():
    wide, narrow = chunked(), single()
    figure = compare({"wide": wide, "narrow": narrow})
    assert figure.text.startswith("wide: timeline, steps 0–")
    assert timeline(narrow).text.partition("\n")[2] in figure.text
    alone = drawing(timeline(wide))
    axis = ("data-first", "data-x", "data-step")
    assert [drawing(figure).get(key) for key in axis] == [alone.get(key) for key in axis]
    assert texts(figure).count("step") == 1
    assert texts(figure).count("decode (1 token)") == 1
    # the second run alone would fill its lane with 5 tokens; beside the first one's 8 it does not
    heights = [LANE_HEIGHT * tokens / 8 for tokens in (8, 5)]
    assert bar_heights(figure)[::2] == pytest.approx(heights, abs=0.02)


def bar_heights(figure):
    """The height of the largest bar of each lane."""
    paths = [e.get("d") for e in drawing(figure).iter(f"{SVG}path") if e.get("fill") == "#c6c6c6"]
    tops = [[float(y) for y in re.findall("V([0-9.]+)", d)] for d in paths]
    return [max(top) - min(top) for top in tops]


def test_a_clock_gives_each_step_its_milliseconds():
    trace = chunked()
    cost = CostModel(HARDWARE["laptop"], MODELS["embedded"])
    figure = timeline(trace, clock=cost)
    for step, told in enumerate(figure.text.splitlines()[4].split()[1:]):
        computed = [
            (r.num_computed_tokens, r.num_tokens)
            for r in trace.at(step)
            if isinstance(r, Scheduled)
        ]
        work = cost.model.step_work(computed)
        want = 1000 * (cost.hardware.least_seconds(work) + cost.hardware.overhead_s)
        assert float(told) == pytest.approx(want, abs=0.5)
    widths = {
        int(step): float(e.get("width"))
        for e in drawing(figure).iter(f"{SVG}rect")
        if (title := e.find(f"{SVG}title")) is not None
        for step in re.findall(r"step (\d+): (?:prefill|decode)", title.text)
    }
    assert widths[0] > widths[trace.num_steps - 1]  # eight tokens, and one
    together = compare({"one": trace, "two": trace}, clock=cost)
    assert together.text == f"one: {lower_first(figure.text)}\n\ntwo: {lower_first(figure.text)}"
    assert "ms" in timeline(trace, clock="seconds").text.splitlines()[1]
    with pytest.raises(ValueError, match="clock must be 'steps', 'seconds' or a CostModel"):
        timeline(trace, clock="days")
    with pytest.raises(ValueError, match="traces must be a dict"):
        compare([trace])


def lower_first(text):
    return text[0].lower() + text[1:]
