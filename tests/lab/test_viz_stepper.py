"""The frames of a run in words and numbers, and what is made of them: the page and the stepper."""

import base64
import dataclasses
import importlib.util
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from inspect import isclass
from itertools import pairwise
from pathlib import Path

import nbformat
import pytest
from traced_runs import (
    cached,
    chunked,
    crowd,
    crowded,
    overlapped,
    preempting,
    sampled,
    sharing,
    single,
)

from minivllm.kv.manager import KVCacheManager
from minivllm.lab.sim.loop import run_step, run_steps
from minivllm.lab.sim.make import make_scheduler
from minivllm.lab.viz.draw.wording import block_list, listing
from minivllm.lab.viz.model.frames import frames
from minivllm.outputs import CompletionOutput, RequestOutput
from minivllm.request import Request, RequestStatus
from minivllm.sampling_params import SamplingParams
from minivllm.trace import Trace, records
from minivllm.trace.records import (
    BlockCopied,
    BlockForgotten,
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
from minivllm.viz import block_grid, block_table, filmstrip, save_html, stepper, timeline

# -- words: a stretch of records, and what it says -------------------------------------------------


def tell(*steps, decode=None):
    """Words of the last of these steps; each is the records of its plan, and those of its result.

    Sequences a, b, c, d, e (letters A to E) have prompts of 12 tokens.
    """
    trace = Trace(40, 4, 64)
    for index, name in enumerate("abcde"):
        trace.record(RequestAdded, name, tuple(range(12)), index)
    for planned, updated in steps:
        trace.start_step()
        for kind, *values in planned:
            trace.record(kind, *values)
        trace.plan_step()
        for kind, *values in updated:
            trace.record(kind, *values)
        trace.end_step()
    *_, last = frames(trace, decode)
    return last.plan, last.result


def prompt(name, *blocks):
    """The records of a prompt that is computed at once."""
    return [(BlocksAllocated, name, blocks), (Scheduled, name, "new", 0, 12, True)]


def test_one_step_in_words():
    plan, result = tell(
        (
            prompt("a", 1, 2, 6) + prompt("b", 4, 8, 7) + prompt("d", 3, 5, 10),
            [(Sampled, name, 50) for name in "abd"],
        ),
        (
            [
                (BlocksFreed, "d", (3, 5, 10)),
                (Preempted, "d", 0),
                (BlockCopied, "b", 7, 9),
                (BlocksAllocated, "c", (3,)),
                (BlocksShared, "e", (1, 2)),
                (BlocksAllocated, "e", (10,)),
                (Scheduled, "a", "running", 12, 1, True),
                (Scheduled, "b", "running", 12, 1, True),
                (Scheduled, "c", "new", 0, 4, False),
                (Scheduled, "e", "new", 8, 4, True),
            ],
            [(Sampled, "a", 51), (Sampled, "b", 52), (BlocksFreed, "b", (4, 8, 9)),
             (Finished, "b", "length"), (Sampled, "e", 53)],
        ),
        decode=lambda token: f"w{token}",
    )  # fmt: skip
    assert plan == (
        "D is preempted and gives back blocks 3, 5 and 10; C takes 4 of its 12 prompt tokens; "
        "E finds 8 tokens cached in blocks 1 and 2 and takes the last 4 of its 12 prompt tokens; "
        "A and B decode; block 7 is copied to 9 for B; C gets block 3 and E block 10."
    )
    assert result == (
        "A draws “w51”, B “w52” and E “w53”; B finishes (length) and gives back blocks 4, 8 and 9."
    )


@pytest.mark.parametrize(("start", "num_new", "words"), [
    (0, 12, "A takes all 12 of its prompt tokens."),
    (0, 5, "A takes 5 of its 12 prompt tokens."),
    (5, 3, "A takes 3 more of its 12 prompt tokens."),
    (8, 4, "A takes the last 4 of its 12 prompt tokens."),
    (11, 1, "A takes the last of its 12 prompt tokens."),
])  # fmt: skip
def test_chunks_of_a_prompt(start, num_new, words):
    kind = "new" if start == 0 else "running"
    chunk = (Scheduled, "a", kind, start, num_new, start + num_new == 12)
    assert tell(([chunk], []))[0] == words


def test_what_is_computed_again():
    begun = (prompt("a", 1, 2, 3), [(Sampled, "a", 50), (Sampled, "a", 51)])
    gone = ([(BlocksFreed, "a", (1, 2, 3)), (Preempted, "a", 0)], [])
    back = (Scheduled, "a", "resumed", 0, 14, True)
    assert tell(begun, gone) == ("A is preempted and gives back blocks 1 to 3.", "")
    plan, _ = tell(begun, gone, ([back], []))
    assert plan == "A is back and computes all 14 of its tokens again."
    chunk = ([(Scheduled, "a", "resumed", 0, 8, False)], [])
    plan, _ = tell(begun, gone, chunk, ([(Scheduled, "a", "running", 8, 6, True)], []))
    assert plan == "A computes the last 6 of its 14 tokens again."
    plan, _ = tell(begun, gone, ([(Scheduled, "a", "resumed", 0, 0, False)], []))
    assert plan == "A is back and waits for budget."
    hit = [(BlocksShared, "a", (1, 2, 3)), (Scheduled, "a", "resumed", 12, 2, True)]
    plan, _ = tell(begun, gone, (hit, []))
    assert plan == (
        "A is back, finds 12 tokens cached in blocks 1 to 3 and computes the last 2 of its 14 "
        "tokens again."
    )


def test_to_the_host_and_back():
    begun = (prompt("a", 1, 2, 3), [(Sampled, "a", 50)])
    gone = ([(BlocksFreed, "a", (1, 2, 3)), (SwappedOut, "a", (0, 1, 2))], [])
    back = [(SwappedIn, "a", (7, 8, 4)), (Scheduled, "a", "resumed", 12, 1, True)]
    assert tell(begun, gone)[0] == (
        "A is swapped out to host blocks 0 to 2 and gives back blocks 1 to 3."
    )
    assert tell(begun, gone, (back, []))[0] == (
        "A comes back from the host into blocks 7, 8 and 4; A decodes."
    )


def test_forks_cache_and_ends():
    trace_of_forks = (prompt("a", 1, 2, 3), [(Forked, "a", "a/1"), (Forked, "a", "a/2")])
    assert tell(trace_of_forks)[1] == "A forks into A, A1 and A2, which share its blocks."
    registered = (
        [*prompt("a", 1, 2, 3), (BlocksCached, "a", (1, 2), (b"1", b"2"))],
        [(BlocksFreed, "a", (1, 2, 3)), (Finished, "a", "abort")],
    )
    assert tell(registered) == (
        "A takes all 12 of its prompt tokens; A gets blocks 1 to 3; blocks 1 and 2 are known to "
        "the prefix cache from now on.",
        "A is aborted and gives back blocks 1 to 3.",
    )
    evicting = (prompt("b", 3, 2, 4), [(BlockForgotten, 1), (Finished, "c", "stop")])
    assert tell(registered, evicting) == (
        "B takes all 12 of its prompt tokens; B gets blocks 3, 2 and 4; block 2 is evicted from "
        "the prefix cache to make room.",
        "Block 1 is forgotten by the prefix cache; C finishes (stop).",
    )


def test_what_was_called_off_is_not_told():
    withdrawn = [
        (BlocksAllocated, "a", (3,)), (BlocksCached, "a", (3,), (b"3",)), (BlockForgotten, 3),
        (BlocksFreed, "a", (1, 4, 5, 3)), (Preempted, "a", 0),
    ]  # fmt: skip
    plan, _ = tell((prompt("a", 1, 4, 5), []), (withdrawn, []))
    assert plan == "A is preempted and gives back blocks 1, 4, 5 and 3."


def test_tokens_by_their_texts():
    step = (prompt("a", 1, 2, 3), [(Sampled, "a", 50)])
    assert tell(step, decode=lambda token: f" t{token}")[1] == "A draws “ t50”."
    assert tell(step, decode=lambda token: " \n")[1] == "A draws “·↵”."


def test_of_many_the_first_are_named():
    trace = crowd()
    plans = [frame.plan for frame in frames(trace)]
    assert any(re.search(r"\w+, \w+, \w+, \w+, \w+ and \d+ others decode", p) for p in plans)
    assert max(map(len, plans)) < 700
    names = [f"r{i}" for i in range(9)]
    trace = Trace(40, 4, 64)
    for index, name in enumerate(names):
        trace.record(RequestAdded, name, (1, 2), index)
    trace.start_step()
    for index, name in enumerate(names):
        trace.record(BlocksAllocated, name, (index + 1,))
        trace.record(Scheduled, name, "new", 0, 2, True)
    trace.plan_step()
    for index, name in enumerate(names):
        trace.record(Sampled, name, 7)
        trace.record(BlocksFreed, name, (index + 1,))
        trace.record(Finished, name, "length")
    trace.end_step()
    (frame,) = frames(trace)
    assert frame.before.endswith("E (2 tokens) and 4 others arrive.")
    assert "; 4 others compute 8 tokens; " in frame.plan
    assert frame.plan.endswith("E block 5 and 4 others 4 blocks.")
    ends = "A, B, C, D, E and 4 others finish (length) and give back 9 blocks."
    assert frame.result == ends, "ids of tokens tell a reader nothing"
    (named,) = frames(trace, lambda token: f"w{token}")
    assert named.result.endswith("E “w7” and 4 others one each; " + ends)


def test_between_the_steps_and_after_the_last():
    trace = Trace(10, 4, 64)
    manager = KVCacheManager(10, 4, True, trace=trace)
    scheduler = make_scheduler(
        manager, max_num_batched_tokens=64, max_num_seqs=8, max_model_len=64, trace=trace
    )

    def add(name, length):
        scheduler.add_request(Request(name, list(range(length)), SamplingParams(max_tokens=2)))

    add("x", 5)
    run_step(scheduler)
    add("y", 6)
    add("z", 1)
    scheduler.finish_requests(["x"], RequestStatus.FINISHED_ABORTED)
    run_step(scheduler)
    run_step(scheduler)
    assert scheduler.kv_manager.reset_prefix_cache()
    first, second, third = frames(trace)
    assert first.before == "A (5 tokens) arrives."
    assert second.before == (
        "B (6 tokens) and C (1 token) arrive; A is aborted and gives back blocks 1 and 2."
    )
    assert "C takes its only prompt token" in second.plan
    assert "B finds 4 tokens cached in block 1" in second.plan
    assert third.result.endswith(" Block 1 is forgotten by the prefix cache.")


def test_every_kind_of_record_has_its_words():
    classes = filter(isclass, vars(records).values())
    kinds = {kind for kind in classes if issubclass(kind, records.Record)}
    bases = {records.Record, records.BlocksOfSequence, records.LoRARecord,
             records.RankRecord, records.ItemRecord}  # fmt: skip
    silent_kinds = {*bases, records.StepStarted, records.StepPlanned, records.StepEnded}
    samples = {"seq_id": "a", "request_id": "f", "prompt_token_ids": (1,), "block_ids": (3,),
               "block_hashes": (b"3",),
               "queue_index": 0, "block_id": 3, "src_block_id": 3, "dst_block_id": 4,
               "child_id": "a/1",
               "waiting": ("a",),
               "kind": "running", "num_computed_tokens": 12, "num_tokens": 1, "samples": True,
               "token_id": 5, "reason": "stop", "time": 0.0,
               "lora_int_id": 1, "lora_name": "sql", "slot": 0,
               "draft_token_ids": (5, 6), "num_accepted": 1,
               "rank": 1, "plan": 0, "start": 0.0, "end": 1.0,
               "group": 0, "op": "all_reduce", "num_bytes": 8,
               "identifier": "cat", "num_embeds": 4, "mm_items": (), "succeeded": True}  # fmt: skip
    decode = (Scheduled, "a", "running", 12, 1, True)
    silent = tell((prompt("a", 1, 2, 3), []), ([decode], []), decode=str)
    refers = (records.ItemReferred, "a", "cat", 4)
    before = {
        SwappedIn: [(SwappedOut, "a", (0,))],
        records.LoRAEvicted: [(records.LoRALoaded, 1, "sql", 0)],
        records.ItemReferred: [refers],
        records.ItemFreed: [refers],
        records.ItemEvicted: [refers, (records.ItemFreed, "a", "cat")],
    }
    for kind in kinds - silent_kinds:
        names = [field.name for field in dataclasses.fields(kind)][1:]
        known = {
            records.TransferStarted: {"kind": "recv"},
            records.TransferEnded: {"kind": "recv", "queue_index": None},
            records.RequestSkipped: {"request_id": "a"},
            records.Communicated: {"group": "tp"},  # ranks'; a block's is a number
        }.get(kind, {})
        record = (kind, *((samples | known)[name] for name in names))
        told = tell(
            (prompt("a", 1, 2, 3), before.get(kind, [])), ([record, decode], []), decode=str
        )
        assert told != silent, f"{kind.__name__} is not told"


def test_lists():
    assert listing([]) == ""
    assert listing(["A"]) == "A"
    assert listing(["A", "B"]) == "A and B"
    assert listing(["A", "B", "C"], 3) == "A, B and C"
    assert listing(["A", "B", "C", "D"], 3) == "A, B, C and 1 other"
    assert block_list([3]) == "block 3"
    assert block_list([3, 4]) == "blocks 3 and 4"
    assert block_list([2, 4, 5, 6, 7, 9, 8]) == "blocks 2, 4 to 7, 9 and 8"
    assert block_list(range(1, 40, 2)) == "20 blocks"


# -- frames ----------------------------------------------------------------------------------------


def swapping():
    """Two requests of two samples each, in a pool that cannot hold both for long."""
    trace = Trace(13, 4, 64)
    manager = KVCacheManager(13, 4, num_host_blocks=8, trace=trace)
    scheduler = make_scheduler(
        manager, max_num_batched_tokens=64, max_num_seqs=8, max_model_len=64, trace=trace
    )
    for name in ("x", "y"):
        params = SamplingParams(n=2, max_tokens=12)
        scheduler.add_request(Request(name, list(range(6)), params))
    for _ in run_steps(scheduler):
        pass
    return trace


WORLDS = [
    chunked, preempting, single, crowd, sharing, cached, sampled, swapping, overlapped, crowded
]  # fmt: skip


@pytest.mark.parametrize("world", WORLDS)
def test_frames_are_the_states_of_the_trace(world):
    trace = world()
    all_frames = list(frames(trace))
    assert [frame.step for frame in all_frames] == list(range(trace.num_steps))
    for frame in all_frames[:: 1 + len(all_frames) // 50]:
        state = trace.state_at(frame.step, "schedule")
        assert frame.ref_counts == state.ref_counts
        assert frame.num_scheduled == state.num_planned_tokens(frame.step)
        assert frame.cached == state.cached
        places = {b: place for place, b in enumerate(state.free_queue, start=1)}
        assert [(b.block_id, b.place) for b in frame.free] == sorted(
            ((b, places[b]) for b in state.cached - state.ref_counts.keys()), key=lambda it: it[1]
        )
        assert [*frame.running] == state.running
        assert [*frame.waiting] == state.waiting
        assert [*frame.swapped] == state.swapped
        assert {row.owner.seq_id: row.block_ids for row in frame.rows} == {
            seq_id: tuple(seq.block_ids) for seq_id, seq in state.sequences.items() if seq.block_ids
        }
        for row in frame.rows:
            seq = state.sequences[row.owner.seq_id]
            num_scheduled = row.num_in_flight + row.num_scheduled
            assert (row.num_computed, num_scheduled, row.num_tokens) == (
                seq.num_computed_tokens, seq.num_scheduled_tokens, len(seq.token_ids),
            )  # fmt: skip


def test_new_blocks_are_the_last_of_a_table():
    for world in (chunked, preempting, sampled, swapping):
        for before, after in pairwise(frames(world())):
            tables = {row.owner.seq_id: row.block_ids for row in before.rows}
            for row in after.rows:
                if row.owner.seq_id in tables:
                    old = set(tables[row.owner.seq_id])
                    kept = len(row.block_ids) - row.num_new
                    assert set(row.block_ids[:kept]) <= old
                    assert not set(row.block_ids[kept:]) & old


def test_swaps_are_told():
    words = " ".join(frame.words for frame in frames(swapping()))
    assert "B is swapped out to host blocks 1 to 3 and gives back blocks 3, 6 and 9; B1 is" in words
    assert "B comes back from the host into blocks" in words


# -- the page --------------------------------------------------------------------------------------


def saved(trace, tmp_path, **options):
    save_html(trace, tmp_path / "run.html", **options)
    return (tmp_path / "run.html").read_text(encoding="utf-8")


def run_of(page):
    return json.loads(re.search(r'id="run">(.*?)</script>', page, re.DOTALL)[1])


def test_the_page_needs_nothing_from_elsewhere(tmp_path):
    trace = preempting()
    page = saved(trace, tmp_path)
    assert page == saved(preempting(), tmp_path), "the same bytes for the same run"
    assert timeline(trace).svg in page
    assert "http" not in re.sub(r'xmlns="http://www.w3.org/2000/svg"|http-equiv', "", page)
    assert not re.search(r"\bsrc=|@import|url\((?!#)|\bfetch\(|\bimport ", page)
    assert re.findall(r'href="(.*?)"', page) == ["data:,"]
    assert "<dt>preemptions</dt><dd>3</dd>" in page
    assert [frame["step"] for frame in run_of(page)["frames"]] == list(range(trace.num_steps))


def test_the_page_tells_prompts_and_outputs(tmp_path):
    completions = [CompletionOutput(i, f"text {i}", [7], finish_reason="stop") for i in range(2)]
    output = RequestOutput("x", "A <prompt>", [1], None, completions, finished=True)
    page = saved(sampled(), tmp_path, title="A <run>", outputs=[output])

    prompt = "A &lt;prompt&gt;"

    def cells(*texts):
        return "".join(f"<td><div>{text}</div></td>" for text in texts)

    assert "<title>A &lt;run&gt;</title>" in page
    assert '<th scope="row">A</th>' + cells("x", prompt, "text 0") in page
    assert '<th scope="row">A1</th>' + cells("x/1", prompt, "text 1") in page


def test_no_token_ends_the_script(tmp_path):
    page = saved(single(), tmp_path, decode=lambda token: "</script>")
    assert page.count("</script>") == saved(single(), tmp_path).count("</script>")
    assert run_of(page)["tokens"]["texts"] == ["</scr…"]


@pytest.mark.slow
def test_a_long_run_stays_small(tmp_path, monkeypatch):
    trace = crowd()
    assert len(saved(trace, tmp_path)) < 500_000
    monkeypatch.setattr("minivllm.lab.viz.page.page.MAX_CHARACTERS", 50_000)
    page = saved(trace, tmp_path)
    assert len(page) < 250_000
    steps = [frame["step"] for frame in run_of(page)["frames"]]
    assert steps[0] == 0
    assert steps[-1] == trace.num_steps - 1
    assert f"{len(steps)} of {trace.num_steps} steps are shown, at even distances" in page


def test_a_run_without_steps_is_refused(tmp_path):
    with pytest.raises(ValueError, match="at least one step"):
        save_html(Trace(8, 4, 64), tmp_path / "run.html")
    assert not (tmp_path / "run.html").exists()


# -- the stepper -----------------------------------------------------------------------------------

IMAGE = re.compile(r"image/svg\+xml;base64,([^\"]+)")
HEIGHT = re.compile(r"[^-]height: ([\d.]+(?:px|em))")


def width_of(figure):
    return float(ET.fromstring(figure.svg).get("width"))


def height_of(figure):
    return float(ET.fromstring(figure.svg).get("height"))


WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
NOTEBOOK = """\
from minivllm.lab.sim.dry_run import dry_run
from minivllm.viz import stepper

stepper(dry_run([(6, 5), (9, 4)], num_blocks=9, block_size=4, max_model_len=16))
"""


@pytest.mark.parametrize("world", [chunked, swapping, cached])
def test_the_slider_changes_words_and_picture(world):
    trace = world()
    walk = stepper(trace)
    steps = [*range(trace.num_steps), *reversed(range(trace.num_steps))]
    for step in steps[:: 1 + len(steps) // 20]:
        walk.slider.value = step
        frame = walk.frames[step]
        assert frame.plan in walk.words.value
        assert frame.result in walk.words.value
        shown = [base64.b64decode(data).decode() for data in IMAGE.findall(walk.picture.value)]
        assert shown == [block_grid(trace, step).svg, block_table(trace, step).svg]


@pytest.mark.parametrize("world", [swapping, sampled])
def test_nothing_moves_while_it_plays(world):
    """The boxes of words and pictures have one height, in which the pictures have room."""
    trace = world()
    walk = stepper(trace)
    seen = set()
    for step in range(trace.num_steps):
        walk.slider.value = step
        seen.add(tuple(HEIGHT.findall(walk.words.value + walk.picture.value)))
        for figure in (block_grid(trace, step), block_table(trace, step)):
            assert f"min-width: {0.96 * width_of(figure):.0f}px" in walk.picture.value
    ((words, pool, tables),) = seen
    assert words == "7.5em"
    highest = max(height_of(block_table(trace, step)) for step in range(trace.num_steps))
    assert highest <= float(tables.removesuffix("px"))
    assert pool.endswith("px")


def test_the_buttons_step_and_stop_at_the_ends():
    walk = stepper(single())
    walk.back.click()
    assert walk.slider.value == 0
    for _ in range(20):
        walk.forward.click()
    assert walk.slider.value == 7
    walk.back.click()
    assert walk.slider.value == 6
    assert "step 6" in walk.picture.value


def test_the_queues_are_told():
    walk = stepper(swapping())
    walk.slider.value = 8
    assert walk.words.value.endswith("Running: A and A1. On the host: B and B1.</div>")
    walk = stepper(chunked())
    assert walk.words.value.endswith("Running: A. Waiting: B and C.</div>")


def test_one_bundle_is_live_and_still():
    trace = sampled()
    walk = stepper(trace, steps=[0, 1])
    bundle, metadata = walk._repr_mimebundle_()
    assert metadata == {"image/svg+xml": {"alt": walk.still.alt}}
    assert bundle.keys() == {WIDGET_VIEW, "image/svg+xml", "text/plain"}
    assert bundle[WIDGET_VIEW]["model_id"] == walk.box.model_id
    still, again = walk.still, stepper(sampled(), steps=[0, 1]).still
    assert (still.svg, still.text, still.alt) == (again.svg, again.text, again.alt)
    strip = filmstrip(trace, [0, 1])
    assert strip.svg in still.svg
    root = ET.fromstring(still.svg)
    drawn = " ".join(text.text for text in root.findall("{http://www.w3.org/2000/svg}text"))
    for frame in walk.frames[:2]:
        assert frame.words in drawn.replace("step 1 ", "")
        assert f"step {frame.step}: {frame.words}" in bundle["text/plain"]
    assert repr(walk) == bundle["text/plain"]


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="at least one step"):
        stepper(Trace(8, 4, 64))
    with pytest.raises(ValueError, match="step must be between -1 and 7"):
        stepper(single(), steps=[8])


def test_without_ipywidgets_it_is_the_still_picture(monkeypatch):
    live = stepper(single())
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    assert stepper(single()) == live.still


@pytest.mark.slow
def test_a_committed_stepper_is_compared_but_for_what_is_live(tmp_path):
    """Strict nbval passes over it, and fails if it shows something else."""
    path = Path(__file__).parents[2] / "notebooks" / "execute.py"
    spec = importlib.util.spec_from_file_location("execute", path)
    execute = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(execute)
    good, tampered = tmp_path / "good.ipynb", tmp_path / "tampered.ipynb"
    cells = [nbformat.v4.new_code_cell(NOTEBOOK, id="stepper")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), good)
    execute.execute(good)
    (output,) = nbformat.read(good, as_version=4).cells[0].outputs
    assert output.data.keys() == {"image/svg+xml", "text/plain"}
    text = good.read_text(encoding="utf-8")
    tampered.write_text(text.replace("A and B decode", "A decodes"), encoding="utf-8")
    assert tampered.read_text(encoding="utf-8") != text
    command = [sys.executable, "-m", "pytest", "-q", "--nbval", "--nbval-current-env",
               "-p", "no:cacheprovider", f"--rootdir={tmp_path}", "-c", "/dev/null",
               str(good), str(tampered)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert re.search("FAILED .*tampered.ipynb", done.stdout)
