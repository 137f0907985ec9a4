"""Figures of KV cache groups: a table for each, what windows leave, and how many each holds."""

import json
import re

import pytest
from helpers import assert_same_free_queue
from test_viz_figures import SVG, check_figure, drawing, texts
from traced_runs import HEADS, chunked, windowed

from minivllm import EngineArgs
from minivllm.engine.core_parts import make_scheduler
from minivllm.kv.kv_cache_config import KVCacheConfig
from minivllm.kv.kv_cache_spec import (
    FullAttentionSpec,
    SlidingWindowSpec,
    get_kv_cache_groups,
    table_groups,
)
from minivllm.lab.sim.loop import run_steps
from minivllm.lab.sim.make import make_request, make_traced_scheduler
from minivllm.lab.viz.model.frames import frames
from minivllm.lab.viz.model.live import LiveRun
from minivllm.lab.viz.model.timeline_model import TimelineWindow, read_history
from minivllm.lab.viz.page.chrome_trace import chrome_trace
from minivllm.lab.viz.page.live import picture
from minivllm.lab.viz.page.page import run_to_json
from minivllm.metrics.families import EngineMetrics
from minivllm.metrics.loggers import LoggingStatLogger
from minivllm.trace import Trace
from minivllm.trace.groups import TableGroup, group_labels
from minivllm.trace.records import (
    BlocksAllocated,
    BlocksFreed,
    BlocksShared,
    BlocksSkipped,
    Finished,
    RequestAdded,
    SwappedIn,
    SwappedOut,
)
from minivllm.viz import (
    block_grid,
    block_table,
    compare,
    filmstrip,
    prefix_tree,
    stepper,
    table_strip,
    timeline,
)
from minivllm.worker.kv_cache import kv_cache_specs

STEM = list(range(40))


def two(**more):
    """A window of 9 beside full attention; the first request's window leaves blocks in step 3."""
    return windowed({"a": 26, "b": 9}, **more)


def shared():
    """Two windows and full attention, four requests with a stem, and a pool that is too small."""
    prompts = {name: [*STEM, *[100 + i] * 5] for i, name in enumerate("abcd")}
    return windowed(
        prompts, (9, 9, None), block_sizes=(4, 4, 4), num_output=12, budget=24, num_blocks=48,
        enable_prefix_caching=True, prefix_cache_retention_interval=8,
    )  # fmt: skip


def unequal():
    """Groups whose blocks are of other sizes."""
    return windowed({"a": 26, "b": 21}, (9, None), block_sizes=(2, 8), enable_prefix_caching=True)


# -- the state that a trace leads to ---------------------------------------------------------------


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("windows", [(9, None), (5, 9, None), (7,), (1, None), (1,)])
def test_a_state_has_the_tables_and_the_free_queue_of_the_manager(windows, swap):
    specs = [
        FullAttentionSpec(4, **HEADS)
        if window is None
        else SlidingWindowSpec(4, sliding_window=window, **HEADS)
        for window in windows
    ]
    scheduler = make_traced_scheduler(
        num_blocks=9 + 9 * len(windows),
        block_size=4,
        max_num_batched_tokens=20,
        enable_prefix_caching=True,
        num_host_blocks=40 if swap else 0,
        groups=specs,
        prefix_cache_retention_interval=None,
        max_model_len=80,
        preemption_mode="swap" if swap else "recompute",
    )
    requests = [
        make_request(str(i), [*STEM[: 4 * i], *[50 + i] * (9 - i)], 20, arrival_time=2.0 * i)
        for i in range(6)
    ]
    manager = scheduler.kv_manager
    for _ in run_steps(scheduler, requests):
        manager.check_integrity()
        trace = scheduler.trace
        state = trace.state_at(trace.step)
        held = {s.seq_id: s.tables for s in state.sequences.values() if any(s.tables)}
        assert held == {s: manager.get_block_ids(s) for s in manager.block_tables}
        assert_same_free_queue(state, manager)
        groups = manager.prefix_cache.group_of
        assert {b: c.group for b, c in state.contents.items()} == {
            block.block_id: groups(block) for block in manager.prefix_cache
        }
    assert any(trace.of(BlocksSkipped))


def test_a_table_that_is_null_throughout_ends_with_its_request():
    trace = Trace(9, 4, 8, groups=(TableGroup(4, 1), TableGroup(4)))
    trace.record(RequestAdded, "a", tuple(range(4)), 0)
    trace.start_step()
    trace.record(BlocksAllocated, "a", (1,))
    trace.record(BlocksAllocated, "a", (2,), 1)
    trace.record(BlocksSkipped, "a", (1,))
    trace.record(BlocksFreed, "a", ())
    trace.record(BlocksFreed, "a", (2,), 1)
    trace.record(Finished, "a", "abort")
    trace.plan_step()
    trace.end_step()
    state = trace.state_at(0)
    assert state.sequences["a"].tables == [[], []]
    assert list(state.free_queue)[:2] == [2, 1]  # none is cached: each goes to the front
    (frame,) = frames(trace)
    assert "A is aborted and gives back block 2" in frame.words


def test_groups_have_short_and_long_names():
    full, window = TableGroup(4), TableGroup(4, 17)
    assert group_labels([full]) == group_labels([window]) == []
    assert group_labels([window, full]) == [("w", "window 17"), ("f", "full")]
    names = group_labels([window, TableGroup(4, 5), window, full])
    assert names == [
        ("w1", "window 17 w1"), ("w2", "window 5"), ("w3", "window 17 w3"), ("f", "full"),
    ]  # fmt: skip
    specs = [SlidingWindowSpec(4, sliding_window=17, **HEADS), FullAttentionSpec(8, **HEADS)]
    assert table_groups(specs) == (window, TableGroup(8))
    assert table_groups(specs[1:]) == ()
    assert table_groups(specs[:1]) == (window,)


# -- figures ---------------------------------------------------------------------------------------

FIGURES = [block_grid, block_table, timeline, prefix_tree,
           lambda trace: filmstrip(trace, [1, 3]),
           lambda trace: table_strip({"run": trace}, "a", [0, 2])]  # fmt: skip


@pytest.mark.parametrize("draw", FIGURES)
@pytest.mark.parametrize("world", [two, shared, unequal])
def test_a_run_with_groups_can_be_drawn(draw, world):
    check_figure(draw(world()), draw(world()))


def edges(figure):
    """Number of boxes with each pattern of strokes."""
    dashes = [rect.get("stroke-dasharray") for rect in drawing(figure).iter(f"{SVG}rect")]
    return {dash: dashes.count(dash) for dash in dashes if dash}


def test_a_table_has_a_row_for_each_group_and_dotted_cells_where_a_window_left():
    trace = two()
    figure = block_table(trace, 3, mark=[("A", "window 9", 2, "it went back")])
    assert {"a window 9", "a full", "b window 9", "b full"} <= {*texts(figure)}
    # two were left before, two now: a dotted and a dashed swatch explain them
    assert edges(figure) == {"1 3": 2 + 1, "5 3": 2 + 1}
    state = trace.state_at(3, "schedule").sequences["a"]
    assert state.tables[0][:4] == [0, 0, 0, 0]
    (left,) = [r for r in trace.at(3) if isinstance(r, BlocksSkipped)]
    assert f"null (was {left.block_ids[0]})" in figure.alt
    assert "4 left behind by a window" in figure.text
    assert "A a, window 9: 24 computed +2 now" in figure.text
    with pytest.raises(ValueError, match="mark must be"):
        block_table(trace, 3, mark=[("A", 2, "which table?")])


def test_one_group_with_a_window_needs_no_name():
    trace = windowed({"a": 26}, (9,), block_sizes=(4,))
    figure = block_table(trace, 3)
    assert "a" in texts(figure)
    assert "window" not in figure.text.split("\n")[3]
    assert "null, null, null (was" in figure.alt
    assert "groups" not in run_to_json(trace)
    assert [name for name, *_ in read_lanes(trace)] == ["tokens", "blocks"]


def read_lanes(trace):
    """Lanes below a timeline: first the names, as they are drawn."""
    history = read_history(trace)
    return TimelineWindow.of(history, 0, trace.num_steps - 1).lanes


def test_what_a_window_gives_back_is_marked_in_the_pool():
    trace = windowed({"a": 40}, budget=16, enable_prefix_caching=True, num_output=4)
    steps = [r.step for r in trace.of(BlocksSkipped)]
    marked = 0
    for step in steps:
        figure = block_grid(trace, step)
        taken = {b for r in trace.at(step) if isinstance(r, BlocksAllocated) for b in r.block_ids}
        gone = [b for r in trace.at(step) if isinstance(r, BlocksSkipped) for b in r.block_ids]
        free = [b for b in gone if b not in taken]
        assert edges(figure).get("5 3", 0) == len(free) + bool(free)
        marked += len(free)
        if free:
            assert f"{len(free)} given back by a window" in figure.text
            assert "↩" in figure.text
    assert marked


def test_tiles_say_whose_group_a_block_is():
    trace = two()
    keys = [text for text in texts(block_grid(trace, 4)) if text in ("w", "f")]
    held = trace.state_at(4, "schedule").num_held_by_group
    assert [keys.count("w") - 1, keys.count("f") - 1] == held  # one each is in the legend


def test_a_timeline_has_a_lane_for_each_kind_of_group():
    trace = shared()
    lanes = {name: values for name, _, values, _ in read_lanes(trace)}
    assert list(lanes) == ["tokens", "blocks", "window 9", "full"]
    for step in range(trace.num_steps):
        first, second, full = trace.state_at(step, "schedule").num_held_by_group
        assert (lanes["window 9"][step], lanes["full"][step]) == (first + second, full)
        assert lanes["blocks"][step] == first + second + full
    figure = timeline(trace, mark=[("window 9", 3, "here")])
    assert {"window 9", "full"} <= {*texts(figure)}
    assert [name for name, *_ in read_lanes(chunked())] == ["tokens", "blocks"]


def test_a_run_with_groups_is_compared_with_one_without():
    figure = compare({"groups": two(), "one": chunked()}, mark=[("groups", "full", 2, "grows")])
    assert texts(figure).count("full") == 1


def test_a_strip_shows_tables_over_steps():
    trace = two(num_output=20)
    figure = table_strip({"groups": trace}, "a", [1, 3, 12], mark=[("groups", 12, "no more")])
    tables = [trace.state_at(s, "schedule").sequences["a"].tables for s in (1, 3, 12)]
    held = [sum(block_id > 0 for table in each for block_id in table) for each in tables]
    assert f"groups {', '.join(map(str, held))}" in figure.text
    rows = [line for line in figure.text.splitlines() if "window 9" in line]
    assert [line.count("·") for line in rows] == [0, 4, 6]
    for steps, error in (([], "steps"), (list(range(13)), "steps"), ([99], "step must be")):
        with pytest.raises(ValueError, match=error):
            table_strip({"groups": trace}, "a", steps)
    with pytest.raises(ValueError, match="no sequence 'z'"):
        table_strip({"groups": trace}, "z", [1])
    with pytest.raises(ValueError, match="runs"):
        table_strip({}, "a", [1])


def test_words_tell_what_a_window_leaves_and_what_is_found():
    told = [frame.words for frame in frames(two())]
    (left,) = re.findall(r"A leaves (blocks [\d and]+) behind its window", told[3])
    assert left == "blocks 5 and 6"
    assert "A gives back" not in told[3]
    trace = shared()
    found = [frame.words for frame in frames(trace)]
    hits = {r.seq_id for r in trace.of(BlocksShared) if any(r.block_ids)}
    assert hits
    numbers = [int(n) for text in found for n in re.findall(r"finds (\d+) tokens cached", text)]
    assert numbers
    assert all(number <= 40 for number in numbers)
    assert any("finishes (length) and gives back" in text for text in found)
    assert "leaves" in repr(stepper(two()))


def test_a_swap_is_told_in_one_clause():
    trace = windowed(
        dict.fromkeys("abcd", 14), num_blocks=26, budget=64, num_output=20,
        num_host_blocks=40, preemption_mode="swap",
    )  # fmt: skip
    told = " ".join(frame.words for frame in frames(trace))
    out = [r for r in trace.of(SwappedOut) if r.group == 0]
    assert told.count("is swapped out to host") == len(out) > 0
    back = [r for r in trace.of(SwappedIn) if r.group == 0]
    assert told.count("comes back from the host into") == len(back) > 0
    assert "blocks 0" not in told


def test_a_tree_of_several_groups_is_that_of_full_attention():
    trace = shared()
    tree = prefix_tree(trace)
    cached = trace.state_at(trace.num_steps - 1, "schedule").contents.values()
    assert tree.alt
    alone = windowed({n: [*STEM, *[100 + i] * 5] for i, n in enumerate("abcd")}, (None,),
                     block_sizes=(4,), num_output=12, budget=24, num_blocks=48,
                     enable_prefix_caching=True)  # fmt: skip
    nodes = re.search(r"(\d+) blocks? registered", tree.text)
    same = re.search(r"(\d+) blocks? registered", prefix_tree(alone).text)
    assert (nodes and nodes[1]) == (same and same[1])
    assert {content.group for content in cached} == {0, 1, 2}


# -- beside hit rates ------------------------------------------------------------------------------

PAIR = ["sliding_attention", "full_attention"]
WINDOWS = {
    "use_sliding_window": True, "sliding_window": 64, "max_window_layers": 0,
    "layer_types": [*PAIR, *PAIR, "full_attention"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"hf_overrides": WINDOWS}, True),
        ({"hf_overrides": WINDOWS, "prefix_cache_retention_interval": 64}, False),
        ({"hf_overrides": WINDOWS, "prefix_cache_retention_interval": None}, False),
        ({"hf_overrides": WINDOWS, "disable_hybrid_kv_cache_manager": True}, False),
        ({}, False),
    ],
)
def test_the_log_says_beside_its_hit_rate_that_windows_keep_little(args, said, capsys):
    config = EngineArgs(block_size=16, **args).create_engine_config()
    metrics = EngineMetrics.from_config(config, num_gpu_blocks=9, num_cpu_blocks=0)
    LoggingStatLogger(metrics).log()
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "hit rate" in line]
    assert line.endswith("0.0% (windows keep only the ends of prompts)") == said


def test_an_engine_traces_its_groups():
    config = EngineArgs(block_size=16, trace=True, hf_overrides=WINDOWS).create_engine_config()
    groups = get_kv_cache_groups([kv_cache_specs(config.model_config, config.cache_config)])
    scheduler = make_scheduler(config, KVCacheConfig(90, 0, groups))
    assert scheduler.trace.groups == scheduler.trace.beginning().groups
    assert sorted(group.kind for group in scheduler.trace.groups) == ["full", "full", "window 64"]


# -- pages and files -------------------------------------------------------------------------------


def test_a_page_has_a_row_for_each_table_and_knows_what_went_back():
    trace = two()
    run = run_to_json(trace)
    assert [group["name"] for group in run["groups"]] == ["window 9", "full"]
    assert [group["key"] for group in run["groups"]] == ["w", "f"]
    tables = {}
    for frame in run["frames"]:
        state = trace.state_at(frame["step"], "schedule")
        skipped = {
            (r.seq_id, r.group): list(r.block_ids)
            for r in trace.at(frame["step"])
            if isinstance(r, BlocksSkipped)
        }
        for owner, *_, blocks, _, group, left in [
            row if len(row) > 7 else [*row, 0, []] for row in frame["rows"]
        ]:
            seq_id = run["owners"][owner]["id"]
            table = tables[owner, group] = blocks or tables[owner, group]
            assert list(table) == state.sequences[seq_id].tables[group]
            assert list(left) == skipped.get((seq_id, group), [])
    assert "groups" not in run_to_json(chunked())
    rows = [row for frame in run_to_json(chunked())["frames"] for row in frame["rows"]]
    assert {len(row) for row in rows} == {7}


def test_the_glass_page_gets_the_groups():
    trace = two()
    live = LiveRun(40, 4, 8, groups=trace.groups)
    steps = [r for r in trace.records if r.step <= 3]
    live.update(steps)
    shown = picture(live)
    assert [group["name"] for group in shown["run"]["groups"]] == ["window 9", "full"]
    assert len(shown["frame"]["rows"]) == 4
    assert "window 9" in [name for name, *_ in shown["timeline"]["lanes"]]
    state = trace.state_at(3)
    assert shown["numbers"]["free"] == state.num_free_blocks
    again = LiveRun(40, 4, 8)
    again.begin(state)  # as a run that is attached begins again
    assert [group["name"] for group in picture(again)["run"]["groups"]] == ["window 9", "full"]
    json.dumps(shown)


def test_perfetto_counts_the_blocks_of_each_group():
    trace = two()
    events = chrome_trace(trace, "steps")["traceEvents"]
    counted = [e["args"]["value"] for e in events if e["name"] == "blocks: window 9"]
    held = [trace.state_at(s, "schedule").num_held_by_group[0] for s in range(trace.num_steps)]
    assert counted == [*held, 0]
    assert not any("blocks" in e.get("args", {}) for e in events)  # a chunk's: a window has fewer
    names = {e["name"] for e in chrome_trace(chunked(), "steps")["traceEvents"]}
    assert not any(name.startswith("blocks: ") for name in names)
