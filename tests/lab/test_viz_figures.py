"""The figures of a run: told by the trace, the same bytes every time, small at 300 requests."""

import random
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from copy import deepcopy
from dataclasses import replace
from functools import cache

import pytest

from minivllm.course.ch02.figures.waste import mean_usage
from minivllm.course.ch07.figures.pareto import frontier
from minivllm.kv.manager import KVCacheManager
from minivllm.kv.prefix_cache import hash_block_tokens
from minivllm.lab.contiguous.manager import SlotUsage
from minivllm.lab.sim.loop import fake_execute, run_step, run_steps
from minivllm.lab.sim.make import make_scheduler
from minivllm.lab.sim.run import simulate
from minivllm.lab.sim.waste import PAPER, WasteRow
from minivllm.lab.sim.workloads import alpaca_like
from minivllm.lab.viz.draw.palette import owners_of
from minivllm.lab.viz.figures.latency import read_latencies
from minivllm.lab.viz.model.prefix_model import fold, read_prefix_tree
from minivllm.request import Request
from minivllm.sampling_params import SamplingParams
from minivllm.trace import Trace
from minivllm.trace.records import (
    BlockCopied,
    BlocksAllocated,
    BlocksCached,
    BlocksFreed,
    BlocksShared,
    Finished,
    Forked,
    Preempted,
    RequestAdded,
    Sampled,
    Scheduled,
    SwappedIn,
    SwappedOut,
)
from minivllm.viz import (
    block_grid,
    block_table,
    compare,
    filmstrip,
    gather_arrows,
    latency,
    memory_bars,
    pareto,
    prefix_tree,
    probability_lines,
    program_loads,
    queues,
    save_chrome_trace,
    timeline,
    waste_bars,
)

SVG = "{http://www.w3.org/2000/svg}"
TAGS = {"svg", "title", "desc", "style", "defs", "pattern", "g", "rect", "path", "text"}


def serve(
    requests, num_blocks, block_size=4, budget=64, caching=False, host=0, mode=None, max_num_seqs=64
):
    """Trace a scheduler. ``requests``: each one's step of arrival, name, prompt and parameters."""
    trace = Trace(num_blocks, block_size, budget)
    manager = KVCacheManager(num_blocks, block_size, caching, host, trace=trace)
    scheduler = make_scheduler(
        manager, max_num_batched_tokens=budget, max_num_seqs=max_num_seqs, max_model_len=512,
        preemption_mode=mode, trace=trace,
    )  # fmt: skip
    arrivals = [
        Request(name, list(prompt), params, arrival_time=arrival)
        for arrival, name, prompt, params in requests
    ]
    for _ in run_steps(scheduler, arrivals):
        pass
    return trace


def params(max_tokens, n=1):
    return SamplingParams(max_tokens=max_tokens, n=n, ignore_eos=True, seed=0)


@cache
def chunked():
    """C comes two steps later, and its prompt is computed in chunks."""
    return serve(
        [(0, "A", range(9), params(5)), (0, "B", range(30, 33), params(6)),
         (2, "C", range(50, 64), params(3))], 12, budget=8,
    )  # fmt: skip


@cache
def preempting(mode="recompute"):
    requests = [("A", 7), ("B", 6), ("C", 5)]
    return serve(
        [(0, name, range(n), params(10)) for name, n in requests], 10, budget=16, host=20, mode=mode
    )


def swapping():
    return preempting("swap")


@cache
def forking():
    return serve(
        [(0, "A", range(6), params(5, n=3)), (0, "B", range(20, 29), params(4))], 14, budget=16
    )


SYSTEM = range(100, 112)  # three blocks of 4


@cache
def sharing():
    """Three share a beginning; D then evicts what it needs; E finds what is left."""
    return serve(
        [(0, "A", [*SYSTEM, 1, 2, 3, 4, 5], params(4)),
         (3, "B", [*SYSTEM, 7, 8, 9, 10, 11, 12], params(4)),
         (3, "C", [*SYSTEM[:8], 40, 41, 42, 43, 44], params(3)),
         (8, "D", range(200, 222), params(3)),
         (11, "E", [*SYSTEM, 1, 2, 3, 4, 5], params(3))], 14, budget=32, caching=True,
    )  # fmt: skip


@cache
def crowd():
    """300 requests, some of them preempted, behind six system prompts."""
    rng = random.Random(1)
    prompts = [range(1000 * i, 1000 * i + 48) for i in range(6)]
    return serve(
        [(int(i * 1.2), f"req-{i}",
          [*rng.choice(prompts)[: rng.choice((16, 32, 48))], *[5000 + i] * rng.randrange(5, 120)],
          params(rng.randrange(5, 60))) for i in range(300)],
        140, block_size=16, budget=256, caching=True,
    )  # fmt: skip


TINY = [chunked, preempting, swapping, forking, sharing]
WORLDS = [*TINY, crowd]
FIGURES = [timeline, block_grid, block_table, filmstrip, prefix_tree, queues]


def drawing(figure):
    return ET.fromstring(figure.svg)


def texts(figure):
    elements = drawing(figure).iter(f"{SVG}text")
    return [element.text for element in elements if element.get("stroke") is None]  # no halos


def check_figure(figure, again):
    """Stable, small, readable on any background, and nothing that GitHub strips."""
    assert (figure.svg, figure.text, figure.alt) == (again.svg, again.text, again.alt)
    assert len(figure.svg) < 60_000
    root = drawing(figure)
    assert root.find(f"{SVG}desc").text == figure.alt
    assert figure.alt.endswith(".")
    tags = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert tags <= TAGS
    for style in root.iter(f"{SVG}style"):  # without it the picture is the light one
        assert style.text.startswith("@media (prefers-color-scheme:dark){")
    width, height = float(root.get("width")), float(root.get("height"))
    assert width <= 960
    paper = root.find(f"{SVG}rect")
    assert (paper.get("width"), paper.get("fill")) == (root.get("width"), "#ffffff")
    for element in root.iter():
        assert float(element.get("font-size", 11)) >= 11
        assert not {"style", "class"} & element.attrib.keys()
    for text in root.iter(f"{SVG}text"):
        assert 0 <= float(text.get("x")) <= width
        assert 0 <= float(text.get("y")) <= height
    for line in figure.text.splitlines():
        assert len(line) <= 110  # the facts of a pool
        assert line == line.rstrip()


@pytest.mark.slow
@pytest.mark.parametrize("draw", FIGURES)
@pytest.mark.parametrize("world", WORLDS)
def test_one_call_draws_any_run(draw, world):
    check_figure(draw(world()), draw(world()))


@pytest.mark.parametrize("draw", FIGURES)
@pytest.mark.parametrize("world", TINY)
def test_a_run_whose_beginning_is_forgotten_can_be_drawn(draw, world):
    trace = deepcopy(world())
    trace.forget_before(trace.num_steps // 2)
    check_figure(draw(trace), draw(trace))


@pytest.mark.parametrize("draw", FIGURES)
def test_a_trace_without_steps_is_refused(draw):
    with pytest.raises(ValueError, match="at least one step"):
        draw(Trace(8, 4, 64))


@cache
def searching(reborn_ends=False):
    """Three beams: in step 1 the second is dropped, and born again from the third."""
    trace = Trace(12, 4, 64)
    trace.record(RequestAdded, "x", tuple(range(6)), 0)
    trace.start_step()
    trace.record(BlocksAllocated, "x", (1, 2))
    trace.record(Scheduled, "x", "new", 0, 6, True)
    trace.plan_step()
    for child in ("x/1", "x/2"):
        trace.record(Forked, "x", child)
    for beam in ("x", "x/1", "x/2"):
        trace.record(Sampled, beam, 7)
    trace.end_step()
    trace.start_step()
    for beam, block_id in (("x", 3), ("x/1", 4)):
        trace.record(BlockCopied, beam, 2, block_id)
    for beam in ("x", "x/1", "x/2"):
        trace.record(Scheduled, beam, "running", 6, 1, True)
    trace.plan_step()
    trace.record(BlocksFreed, "x/1", (1, 4))
    trace.record(Finished, "x/1", "dropped")
    trace.record(Forked, "x/2", "x/1")
    for beam in ("x", "x/1", "x/2"):
        trace.record(Sampled, beam, 8)
    if reborn_ends:
        trace.record(Finished, "x/1", "length")
    trace.end_step()
    return trace


@pytest.mark.parametrize("draw", FIGURES)
def test_beams_that_take_each_others_places_can_be_drawn(draw, tmp_path):
    check_figure(draw(searching()), draw(searching()))
    assert [owner.letter for owner in owners_of(searching()).values()] == ["A", "A1", "A2"]
    save_chrome_trace(searching(), tmp_path / "run.json", clock="steps")
    assert (tmp_path / "run.json").stat().st_size > 1000


def test_a_dropped_beam_is_not_a_finished_one():
    figure = timeline(searching())
    assert "0 finished, 1 beam dropped" in figure.alt
    assert "•¦" in figure.text
    assert "beam dropped, its place taken" in texts(figure)
    assert "copy of 2" in texts(block_table(searching(), 1))


def test_a_beam_may_be_dropped_and_end_in_one_step():
    figure = timeline(searching(reborn_ends=True))
    assert "1 finished, 1 beam dropped" in figure.alt
    assert "•¦|" in figure.text


@pytest.mark.slow
def test_the_crowd_is_one():
    trace = crowd()
    assert len(trace.request_ids) == 300
    assert len(list(trace.of(Preempted))) > 50
    figure = timeline(trace)
    assert figure.text.count("\n") > 300  # a line for each
    assert "300 sequences" in figure.alt


def test_beyond_300_sequences_the_timeline_says_what_it_leaves_out():
    requests = [(i, f"r{i}", range(i, i + 5), params(2)) for i in range(310)]
    figure = timeline(serve(requests, 40))
    note = "and 10 more sequences; choose steps with first= and last=."
    assert note in texts(figure)
    assert note in figure.text
    assert "310 sequences" in figure.alt


# -- the filmstrip ---------------------------------------------------------------------------------


@pytest.mark.parametrize("world", TINY)
def test_a_filmstrip_holds_the_tables_of_its_steps(world):
    trace = world()
    steps = range(min(12, trace.num_steps))
    figure = filmstrip(trace, steps)
    frames = figure.text.split("\n\n")[1:-1]
    letters = {seq_id: owner.letter for seq_id, owner in owners_of(trace).items()}
    before = trace.state_at(-1)
    for step, frame in zip(steps, frames, strict=True):
        state = trace.state_at(step, "schedule")
        tables = {
            letter: ids.replace("!", "").split()
            for letter, ids in re.findall(r"^  (\w+) → (.*)$", frame, re.MULTILINE)
        }
        counts = state.ref_counts
        label = {b: f"{b}×{n}" if n > 1 else str(b) for b, n in counts.items()}
        assert tables == {
            letters[s.seq_id]: [label[b] for b in s.block_ids]
            for s in state.sequences.values()
            if s.block_ids
        }
        marked = {int(b) for b in re.findall(r"(\d+)(?:×\d+)?!", frame)}
        gone = re.search("given back: ([0-9 ]+)", frame)
        marked |= {int(b) for b in gone[1].split()} if gone else set()
        moved = {block_id for _, block_id in blocks_of(before) ^ blocks_of(state)}
        copied = {r.src_block_id for r in trace.at(step) if isinstance(r, BlockCopied)}
        assert moved - copied <= marked <= moved
        before = trace.state_at(step, "update")


def blocks_of(state):
    """Pairs of a sequence and a block."""
    return {(s.seq_id, b) for s in state.sequences.values() for b in s.block_ids}


def test_what_a_step_moves_is_outlined():
    figure = filmstrip(preempting(), [5, 6, 10])
    assert "step 6: A 1 · B 1 · C ×" in figure.text
    outlined = [e for e in drawing(figure).iter(f"{SVG}rect") if e.get("stroke-width") == "2.5"]
    changed = [int(n) for n in re.findall(r"(\d+) changed", figure.alt)]
    assert len(outlined) >= sum(changed) + 1  # tiles, chips below them, and one in the legend
    assert all(n > 0 for n in changed)


def test_a_filmstrip_chooses_its_steps_or_is_told():
    trace = preempting()
    busy = {r.step for r in trace.of(BlocksAllocated, BlockCopied, Preempted)}
    chosen = [int(n) for n in re.findall(r"^step (\d+):", filmstrip(trace).text, re.MULTILINE)]
    assert 2 < len(chosen) <= 6
    assert set(chosen) <= busy
    assert (chosen[0], chosen[-1]) == (min(busy), max(busy))
    assert "Filmstrip, step 3" in texts(filmstrip(trace, [3]))
    for steps in ([], range(13)):
        with pytest.raises(ValueError, match="steps must be a list of 1 to 12 steps"):
            filmstrip(trace, steps)
    with pytest.raises(ValueError, match="step must be between"):
        filmstrip(trace, [99])


# -- the block table -------------------------------------------------------------------------------


def test_a_copy_names_its_source():
    trace = forking()
    copies = list(trace.of(BlockCopied))
    assert len(copies) == 2
    figure = block_table(trace, copies[0].step)
    for copy in copies:
        assert f"copy of {copy.src_block_id}" in texts(figure)
        assert f"{copy.dst_block_id}! (copy of {copy.src_block_id})" in figure.text
        assert f"{copy.dst_block_id} is a copy of {copy.src_block_id}" in figure.alt


@pytest.mark.slow
def test_a_large_table_says_what_it_leaves_out():
    trace = crowd()
    step = trace.num_steps // 2
    held = sum(len(s.block_ids) for s in trace.state_at(step, "schedule").sequences.values())
    assert held > 120
    figure = block_table(trace, step)
    assert f"and {held - 120} entries more; choose with sequences=[...]." in texts(figure)
    assert "120 entries" in figure.alt


# -- the prefix tree -------------------------------------------------------------------------------


@pytest.mark.parametrize("after", ["schedule", "update"])
def test_the_tree_is_the_prefix_cache(after):
    trace = sharing()
    for step in range(trace.num_steps):
        tree, state = read_prefix_tree(trace, step, after), trace.state_at(step, after)
        found = {block_id for node in tree.nodes.values() for block_id in node.block_ids}
        assert found == state.cached
        for node in tree.nodes.values():
            assert node.name == hash_block_tokens(
                node.parent.name or bytes(32), list(node.token_ids)
            )
            assert node.ref_count == sum(state.ref_counts.get(b, 0) for b in node.block_ids)
        assert tree.count("held") + tree.count("free") + tree.count("evicted") == len(tree.nodes)
    hits = sum(len(r.block_ids) for r in trace.of(BlocksShared))
    assert sum(len(node.hit_by) for node in tree.nodes.values()) == hits == 9
    registered = sum(len(r.block_hashes) for r in trace.of(BlocksCached))
    assert sum(len(node.computed_by) for node in tree.nodes.values()) == registered


def test_the_tree_tells_who_shares_and_what_was_evicted():
    trace = sharing()
    figure = prefix_tree(trace, 3)
    assert "└─ block 1 ×3!: 100 101 102 103 (A, hit by B C)" in figure.text
    assert "block 2 ×3" in texts(figure)
    assert "A, hit by B C" in texts(figure)
    assert "url(#hatch-" in figure.svg
    later = prefix_tree(trace, 9)
    assert "evicted" in texts(later)
    assert "evicted: 5 " in later.text
    assert "7 free but cached, 1 evicted" in later.alt
    dotted = [e for e in drawing(later).iter(f"{SVG}rect") if e.get("stroke-dasharray") == "2 3"]
    assert len(dotted) == 7 + 1  # one in the legend
    words = prefix_tree(trace, 3, decode=lambda token: f" t{token}")
    assert "·t100·t101" in words.svg


def test_a_tree_survives_a_trace_that_was_cleared():
    trace = Trace(12, 4, 64)
    manager = KVCacheManager(12, 4, enable_prefix_caching=True, trace=trace)
    scheduler = make_scheduler(
        manager, max_num_batched_tokens=64, max_num_seqs=8, max_model_len=64, trace=trace
    )
    for name in ("first", "second"):
        trace.clear()
        scheduler.add_request(Request(name, list(range(9)), params(1)))
        run_step(scheduler)
    figure = prefix_tree(trace)
    assert "0 1 2 3 (before the trace, hit by A)" in figure.text


@pytest.mark.slow
def test_a_large_tree_counts_what_it_folds():
    trace = crowd()
    tree = read_prefix_tree(trace, trace.num_steps - 1, "update")
    root = fold(tree)
    boxes = list(root.walk())
    assert len(boxes) <= 31
    drawn = sum(len(box.nodes) for box in boxes) - 1
    hidden = sum(box.num_hidden_blocks for box in boxes)
    assert drawn + hidden == len(tree.nodes) > 300
    assert sum(node.depth == 0 for box in boxes for node in box.nodes) >= 6


# -- the queues ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_the_queues_are_those_of_the_trace(world):
    trace = world()
    figure = queues(trace)
    lines = figure.text.splitlines()
    gave_way = list(trace.of(Preempted, SwappedOut))
    assert f"{len(gave_way)} preemption" in figure.alt
    letters = {seq_id: owner.letter for seq_id, owner in owners_of(trace).items()}
    peak = max(len(trace.state_at(s, "schedule").running) for s in range(0, trace.num_steps, 7))
    assert int(re.search(r"at most (\d+) running", figure.alt)[1]) >= peak
    if world is crowd:
        return
    for step in range(trace.num_steps):
        state = trace.state_at(step, "schedule")
        preempted = {r.seq_id for r in gave_way if r.step == step}
        (line,) = [line for line in lines if re.match(rf"step +{step} ", line)]
        for name in ("running", "swapped", "waiting"):
            shown = re.search(rf"{name} ((?:\w+×? )*(?:\w+×?|-))(?:  |$)", line)
            ids = getattr(state, name)
            expected = " ".join(letters[i] + "×" * (i in preempted) for i in ids) or "-"
            assert (shown[1] if shown else "-") == expected


def test_a_preemption_is_marked_where_it_happened():
    for world in (preempting, swapping):
        figure = queues(world())
        (record,) = world().of(Preempted, SwappedOut)
        assert texts(figure).count("×") == 1 + 1  # one in the legend
        assert figure.alt.endswith(f"1 preemption, in step {record.step}.")


# -- waste -----------------------------------------------------------------------------------------


def test_waste_of_a_trace_is_counted_slot_by_slot():
    for world in (chunked, forking, sharing):
        trace = world()
        usage = mean_usage(trace)
        assert sum(usage) == pytest.approx((trace.num_blocks - 1) * trace.block_size)
        tokens = []
        for step in range(trace.num_steps):
            state = trace.state_at(step, "schedule")
            slots = set()
            for seq in state.sequences.values():
                if seq.block_ids:
                    for position in range(seq.num_computed_tokens + seq.num_scheduled_tokens):
                        block_id = seq.block_ids[position // trace.block_size]
                        slots.add((block_id, position % trace.block_size))
            tokens.append(len(slots))
        assert usage.tokens == pytest.approx(sum(tokens) / trace.num_steps)


def test_waste_bars_show_their_numbers_and_the_papers():
    rows = [WasteRow("contiguous-max", SlotUsage(20, 14, 57, 0, 5, 4), PAPER["contiguous-max"])]
    figure = waste_bars(rows)
    check_figure(figure, waste_bars(rows))
    words = "tokens 20.0%, reserved 14.0%, internal 57.0%, external 5.0%, free 4.0%"
    assert words in texts(figure)
    assert words in figure.alt
    assert (
        "tokens 20.4%, reserved 13.3%, internal 57.3%, external 8.9% (Orca (Max) in the paper)"
        in (texts(figure))
    )
    result = simulate(alpaca_like(20, rate=5.0), num_blocks=200)
    figure = waste_bars(
        {"a run": chunked(), "a simulation": result, "by hand": SlotUsage(*[1] * 6)}
    )
    check_figure(figure, figure)
    assert f"a simulation: tokens {result.memory.tokens:.1%}" in figure.alt
    widths = [
        float(e.get("width"))
        for e in drawing(figure).iter(f"{SVG}rect")
        if e.find(f"{SVG}title") is not None
    ]
    assert sum(widths) == pytest.approx(3 * 600, abs=0.1)
    with pytest.raises(ValueError, match="usages must be at least one"):
        waste_bars({})


def test_what_kernels_read_is_drawn_program_by_program_and_slot_by_slot():
    loads = {"split 0": (3, 9), "split 1": (4,)}
    figure = program_loads(loads, {9: 1})
    check_figure(figure, program_loads(loads, {9: 1}))
    assert texts(figure)[2:] == ["split 0", "3", "9", "split 1", "4"]
    assert figure.alt == "2 programs, at most 2 blocks one after another; 3 blocks read in all."
    with pytest.raises(ValueError, match="loads must be at least one program"):
        program_loads({})
    figure = gather_arrows({"A": [4, 5, 6], "B": [4, 0]}, num_blocks=2, block_size=4)
    check_figure(figure, figure)
    assert "5 slots are copied, 1 of them twice" in texts(figure)
    arrows = [path.get("d") for path in drawing(figure).iter(f"{SVG}path")]
    assert len(arrows) == 5
    assert arrows[0].split("L")[0] == arrows[3].split("L")[0]  # both read slot 4
    with pytest.raises(ValueError, match="slots\\['A'\\] must be slots below 8"):
        gather_arrows({"A": [8]}, num_blocks=2, block_size=4)


def test_a_number_is_drawn_in_the_interval_that_holds_it():
    rows = {"all": {"a": 0.5, "b": 0.25}, "top_k 1": {"a": 1.0}}
    figure = probability_lines(rows, 0.6)
    check_figure(figure, probability_lines(rows, 0.6))
    assert figure.alt == "The number 0.6 in 2 distributions; all: b; top_k 1: a."
    assert "all: another token;" in probability_lines(rows, 0.75).alt
    widths = {
        (e.find(f"{SVG}title").text): float(e.get("width"))
        for e in drawing(figure).iter(f"{SVG}rect")
        if e.find(f"{SVG}title") is not None
    }
    assert widths == {"a: 0.5": 310, "b: 0.25": 155, "a: 1": 620}
    for wrong, number in ((({}), 0.5), ({"all": {"a": 1.1}}, 0.5), (rows, 1.0)):
        with pytest.raises(ValueError, match="must be"):
            probability_lines(wrong, number)


# -- one way, the host, names ----------------------------------------------------------------------


def test_one_positions_way_from_table_to_slot():
    figure = block_table(chunked(), 6, follow=("C", 10))
    check_figure(figure, block_table(chunked(), 6, follow=("C", 10)))
    assert "position 10 = 2 · 4 + 2: block 8, slot 8 · 4 + 2 = 34" in texts(figure)
    pale = [e for e in drawing(figure).iter(f"{SVG}g") if e.get("opacity") == "0.45"]
    assert len(pale) == 6 - 1  # all entries but its own
    with pytest.raises(ValueError, match="follow must be a sequence's letter and one of its"):
        block_table(chunked(), 6, follow=("C", 99))


def test_a_filmstrip_shows_what_is_on_the_host():
    trace = swapping()
    (out,) = {record.step for record in trace.of(SwappedOut)}
    (back,) = {record.step for record in trace.of(SwappedIn)}
    figure = filmstrip(trace, [out - 1, out, back])
    (record,) = trace.of(SwappedOut)
    assert texts(figure).count("host: nothing") == 1
    assert texts(figure).count("host") == 2
    heads = [e for e in drawing(figure).iter(f"{SVG}path") if e.get("d").endswith("Z")]
    assert len(heads) == 2 * len(record.block_ids)  # an arrow for each block, out and back
    dashed = [e for e in drawing(figure).iter(f"{SVG}rect") if e.get("stroke-dasharray") == "5 3"]
    gone = trace.state_at(out - 1, "update").sequences[record.seq_id].block_ids
    assert len(dashed) >= len(gone) + len(record.block_ids)
    host = f"host: {', '.join(f'{block} (C)' for block in record.block_ids)}"
    assert figure.text.count(host) == 2


def test_a_label_is_said_once():
    owner = owners_of(chunked())["A"]
    for seq_id, label in (("A", "A"), ("0", "A"), ("A0", "A0"), ("req-1", "A req-1"), ("1", "A 1")):
        assert replace(owner, seq_id=seq_id).name(9) == label
    sample = replace(owner, letter="A1", seq_id="0/1")
    assert sample.name(9) == "A1"


def test_programs_are_sorted_by_their_sequences():
    figure = program_loads({"program 0: B": [1], "program 1: A": [2, 3]})
    assert figure.text.splitlines()[2:] == ["program 1: A: 2 3", "program 0: B: 1"]
    assert {"A", "B", "program 0", "program 1"} <= set(texts(figure))


def test_a_lanes_number_is_never_struck_through():
    figure = compare({"wide": serve([(0, "A", range(60), params(3))], 20, budget=64),
                      "low": serve([(0, "A", range(60), params(3))], 20, budget=8)})  # fmt: skip
    runs = [group for group in drawing(figure).iter(f"{SVG}g") if group.get("transform")]
    assert len(runs) == 2
    for run in runs:
        dashes = [e.get("d") for e in run.iter(f"{SVG}path") if e.get("stroke-dasharray") == "4 3"]
        limits = [float(re.search(r" ([\d.]+)H", d)[1]) for d in dashes]
        numbers = [float(e.get("y")) for e in run.iter(f"{SVG}text") if e.text.isdigit()]
        assert limits
        assert numbers
        assert not [(y, line) for y in numbers for line in limits if y - 9 < line < y + 1]
    assert "60 against 60" not in texts(figure)[1]


# -- curves ----------------------------------------------------------------------------------------


def test_latencies_are_counted_in_steps():
    trace = chunked()
    found = read_latencies(trace)
    spans = {span.request_id: span for span in found.spans}
    # C arrives before step 2; its 14 tokens take 6, 6 and 2 of the budget of 8.
    assert spans["C"].ttft == 3
    assert (spans["A"].ttft, spans["B"].ttft) == (2, 2)
    assert [span.tpot for span in found.spans] == [1, 1, 1]
    assert sum(span.num_output_tokens for span in found.spans) == len(list(trace.of(Sampled)))
    slow = {span.request_id: span for span in read_latencies(preempting()).spans}
    assert slow["C"].num_preemptions == 1
    away = sum(1 for r in preempting().of(Scheduled) if r.seq_id == "C")
    assert slow["C"].finished_time > away
    assert max(read_latencies(preempting()).itl) == 5
    assert len(read_latencies(forking()).spans) == 4
    cached = {span.request_id: span.num_cached_tokens for span in read_latencies(sharing()).spans}
    assert cached == {"A": 0, "B": 12, "C": 8, "D": 0, "E": 16}


def test_latencies_in_seconds_come_from_the_traces_clock():
    now = [0.0]
    trace = Trace(20, 4, 64, clock=lambda: now[0])
    manager = KVCacheManager(20, 4, trace=trace)
    scheduler = make_scheduler(
        manager, max_num_batched_tokens=64, max_num_seqs=8, max_model_len=64, trace=trace
    )

    def slow_model(seconds):
        def execute(scheduler, scheduler_output):
            now[0] += seconds
            return fake_execute(scheduler, scheduler_output)

        return execute

    now[0] = 2.0
    scheduler.add_request(Request("x", [1, 2, 3], params(3)))
    for seconds in (0.5, 0.25, 0.125):
        run_step(scheduler, slow_model(seconds))
    found = read_latencies(trace, "seconds")
    assert found.values["TTFT"] == [500.0]
    assert found.values["ITL"] == [125.0, 250.0]
    assert found.values["TPOT"] == [187.5]
    assert found.unit == "ms"


@pytest.mark.slow
def test_latency_plots():
    plot = latency(chunked())
    assert plot.png.startswith(b"\x89PNG")
    assert latency(chunked()).png == plot.png
    head, ttft, *_ = plot.text.splitlines()
    assert head.split() == ["in", "steps", "p50", "p90", "p99"]
    assert ttft.split() == ["TTFT", "2", "2.8", "2.98"]
    data, metadata = plot._repr_mimebundle_()
    assert data["text/plain"] == plot.text == str(plot)
    assert metadata["image/png"]["alt"] == plot.alt
    assert "TTFT 2 at p50" in plot.alt
    result = simulate(alpaca_like(20, rate=5.0), num_blocks=200)
    both = latency({"one": result, "another": result})
    assert f"{result.ttft['p50'] * 1e3:.3g}" in both.text
    assert both.text.count("TPOT") == 2
    with pytest.raises(ValueError, match="all in the same unit"):
        latency({"steps": chunked(), "seconds": result})
    with pytest.raises(ValueError, match="clock must be 'steps' or 'seconds', got 'hours'"):
        latency(chunked(), clock="hours")


def test_pareto_names_those_that_nobody_beats():
    points = {"a": (1, 9), "b": (2, 4), "c": (3, 4), "d": (4, 1), "e": (4, 1), "f": (5, 5)}
    assert frontier(points) == ["a", "b", "d", "e"]
    plot = pareto(points, x="TTFT", y="TPOT")
    assert [line.split()[0] for line in plot.text.splitlines() if "beaten" in line] == ["c", "f"]
    assert plot.png.startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="two finite numbers"):
        pareto({"a": (1, float("nan"))})


def test_memory_bars_show_each_part_in_the_devices_unit():
    parts = {"weights": 3 * 2**30, "KV cache": 5 * 2**30}
    small = {"weights": 2**20, "activations": 3 * 2**19}
    plot = memory_bars({"gpu": (10 * 2**30, {"a": parts}), "cpu": (2**22, {"b": small})})
    assert plot.text.splitlines() == [
        "gpu  a  weights   3.00   KV cache   5.00 GiB",
        "cpu  b  weights   1.00   activations   1.50 MiB",
    ]
    assert "a on gpu: KV cache 50%; b on cpu: activations 38%" in plot.alt
    assert plot.png.startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="at least one bar"):
        memory_bars({"gpu": (1, {})})
    with pytest.raises(ValueError, match="bytes above 0"):
        memory_bars({"gpu": (1, {"a": {"weights": 0}})})


def test_matplotlib_waits_until_it_is_needed(tmp_path):
    code = "import sys, minivllm.viz; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    plot = pareto({"a": (1, 2)})
    plot.save(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes() == plot.png
